"""The request of `/v1/chat/completions`, checked: what is not understood is refused, never ignored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from lightning_sdk.policy.engine import Constraint
from lightning_sdk.policy.errors import ApiError, invalid, unsupported
from lightning_sdk.policy.sampling import SHAPING, SamplingRequest

_MAX_CHOICES = 128
_MAX_STOPS = 16

# Parameters that change nothing in the answer.
_HARMLESS = frozenset(
    {
        "metadata",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
# Parameters that would change the answer, each with the values at which it does not.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "chat_template_kwargs": ({},),
    "function_call": (),
    "functions": ([],),
    "modalities": (["text"],),
    "moderation": (),
    "parallel_tool_calls": (True,),
    "prediction": (),
    "reasoning_effort": ("none",),
    "verbosity": (),
    "web_search_options": (),
}
_MESSAGE_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "refusal": (),
}

# What of a request a record tells as the sampling that was asked for.
_SAMPLING_FIELDS = (
    "temperature",
    "top_p",
    "seed",
    "n",
    "stop",
    "max_tokens",
    "max_completion_tokens",
    "tool_choice",
    *SHAPING,
)

Count = Annotated[int, Field(ge=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class TextPart(_Strict):
    """A part of a message's content. Only text can be read."""

    type: Literal["text"]
    text: str


class FunctionCall(_Strict):
    """What a tool call calls. `arguments` is JSON text, kept as it came."""

    name: str
    arguments: str


class ToolCall(_Strict):
    """A tool call in an assistant's message."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(_Strict):
    """One turn of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def _fits_its_role(self) -> ChatMessage:
        if self.tool_calls and self.role != "assistant":
            raise ValueError("only an assistant's message has tool_calls")
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise ValueError("content may be null only beside an assistant's tool_calls")
        if (self.role == "tool") != (self.tool_call_id is not None):
            raise ValueError("a tool's message, and no other, has a tool_call_id")
        return self

    def plain(self) -> dict[str, Any]:
        """As a chat template takes it: content a string, nothing that is not there."""
        content = self.content
        if content is None or isinstance(content, list):
            content = "".join(part.text for part in content or ())
        message: dict[str, Any] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": content,
        }
        if self.name is not None:
            message["name"] = self.name
        if self.tool_calls:
            message["tool_calls"] = [call.model_dump() for call in self.tool_calls]
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message


class FunctionTool(_Strict):
    """What may be called."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(_Strict):
    """A tool as the API lists it."""

    type: Literal["function"]
    function: FunctionTool


class StreamOptions(_Strict):
    """How to stream."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class JsonSchema(_Strict):
    """The schema of a response format. Its name and description are for people."""

    name: str | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(_Strict):
    """What the answer's text must be."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema belongs to type 'json_schema', and to no other")
        if self.json_schema is not None and self.json_schema.schema_ is None:
            raise ValueError("json_schema has no schema")
        return self


class ChatRequest(_Strict):
    """`POST /v1/chat/completions`."""

    model: str
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=_MAX_CHOICES)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: str | list[str] | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=2, allow_inf_nan=False)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    response_format: ResponseFormat | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: list[Tool] | None = None
    tool_choice: Any = None
    return_token_ids: bool | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def token_limit(self) -> int | None:
        """How many tokens an answer may have; None: what the context leaves."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def active_tools(self) -> list[dict[str, Any]]:
        """The tools that may be called, without what the request left out."""
        if self.tool_choice == "none":
            return []
        return [tool.model_dump(exclude_none=True) for tool in self.tools or ()]

    def sampling(self) -> SamplingRequest:
        """What it says of sampling."""
        given = {name: getattr(self, name) for name in _SAMPLING_FIELDS}
        return SamplingRequest(
            temperature=self.temperature,
            top_p=self.top_p,
            seed=self.seed,
            n=self.n,
            stop=self.stops,
            max_tokens=self.token_limit,
            top_logprobs=self.top_logprobs or 0,
            shaping={name: given[name] for name in SHAPING if given[name] is not None},
            constraint=self._constraint(),
            told={name: value for name, value in given.items() if value is not None},
        )

    def _constraint(self) -> Constraint | None:
        wanted = self.response_format
        if wanted is None or wanted.type == "text":
            return None
        return Constraint(wanted.type, wanted.json_schema.schema_ if wanted.json_schema else None)


def parse_chat_request(body: bytes) -> ChatRequest:
    """Check a request's body.

    Raises:
        ApiError: it is not JSON, not of the right types, or asks for what is not implemented.
    """
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise invalid(f"the body is no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise invalid(f"the body is a JSON {type(fields).__name__}, expected an object")
    try:
        request = ChatRequest.model_validate(_without_neutral(fields))
    except ValidationError as error:
        raise _clearest_fault(error) from None
    _check_together(request)
    return request


def _without_neutral(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields that say something, once those are refused that cannot be honoured."""
    kept = {name: value for name, value in fields.items() if name not in _HARMLESS}
    kept = _drop_neutral(kept, _NEUTRAL, "")
    messages = kept.get("messages")
    if isinstance(messages, list):
        kept["messages"] = [
            _drop_neutral(message, _MESSAGE_NEUTRAL, f"messages[{place}].")
            if isinstance(message, dict)
            else message
            for place, message in enumerate(messages)
        ]
    return kept


def _drop_neutral(fields: dict[str, Any], neutral: dict[str, tuple[Any, ...]], where: str) -> dict[str, Any]:
    kept = {}
    for name, value in fields.items():
        if name not in neutral:
            kept[name] = value
        elif value is not None and value not in neutral[name]:
            allowed = " or ".join(["leaving it out", *map(repr, neutral[name])])
            raise unsupported(where + name, f"it would change the answer; only {allowed} is accepted")
    return kept


def _check_together(request: ChatRequest) -> None:
    if len(request.stops) > _MAX_STOPS or not all(request.stops):
        raise invalid(f"stop takes up to {_MAX_STOPS} strings, none empty", param="stop")
    if request.top_logprobs and not request.logprobs:
        raise invalid("top_logprobs needs logprobs to be true", param="top_logprobs")
    if request.stream_options is not None and not request.stream:
        raise invalid("stream_options needs stream to be true", param="stream_options")
    both = (request.max_tokens, request.max_completion_tokens)
    if None not in both and both[0] != both[1]:
        raise invalid("max_tokens and max_completion_tokens disagree: give one", param="max_tokens")
    if request.tool_choice not in (None, "auto", "none"):
        raise unsupported(
            "tool_choice",
            "forcing a call would need constrained sampling; 'auto' and 'none' are accepted",
        )


def _clearest_fault(error: ValidationError) -> ApiError:
    # The innermost: of a union, the branch that got furthest.
    fault = max(error.errors(include_url=False), key=lambda fault: len(fault["loc"]))
    param = _path(fault["loc"])
    if fault["type"] == "extra_forbidden":
        return unsupported(param, "this endpoint does not know it")
    message = fault["msg"].removeprefix("Value error, ")
    return invalid(f"{param or 'the request'}: {message}", param=param or None)


def _path(location: tuple[int | str, ...]) -> str:
    """`("messages", 0, "role")` as `messages[0].role`, without the names of our own types."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif "[" not in part and part not in ("str", "list", "TextPart"):
            path += f".{part}" if path else part
    return path
