"""The request of `/v1/responses`, and the chat messages that its items are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from lightning_sdk.policy.apis.chat_request import HARMLESS
from lightning_sdk.policy.apis.fields import MOST_TOP_LOGPROBS
from lightning_sdk.policy.apis.reading import (
    Count,
    FunctionName,
    Neutral,
    Probability,
    Strict,
    Temperature,
    check_fields,
    drop_neutral,
    drop_neutral_in_each,
    read_fields,
    without_harmless,
)
from lightning_sdk.policy.engine import Constraint
from lightning_sdk.policy.errors import forced_call, invalid, unsupported
from lightning_sdk.policy.sampling import SamplingRequest

_NEUTRAL: Final[Neutral] = {
    "access_programs": (),
    "background": (False,),
    "background_options": (),
    "context_management": ([],),
    "image": (),
    "max_tool_calls": (),
    "moderation": (),
    "parallel_tool_calls": (True,),
    "prompt": (),
    "truncation": ("disabled",),
}
_TOOL_NEUTRAL: Final[Neutral] = {
    "allowed_callers": (["direct"],),
    "async": (False,),
    "defer_loading": (False,),
}
# What is told of an item beside what it says.
_BESIDE_ITEMS: Final = frozenset({"id", "status", "phase", "created_by", "output_schema"})
_ITEM_NEUTRAL: Final[Neutral] = {"caller": (), "namespace": ()}
_LOGPROBS: Final = "message.output_text.logprobs"
# There is never any reasoning to tell.
_INCLUDABLE: Final = frozenset({_LOGPROBS, "reasoning.encrypted_content"})


class TextPart(Strict):
    """A part of a content. Only text can be read."""

    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    logprobs: list[Any] | None = None
    prompt_cache_breakpoint: Any = None


class MessageItem(Strict):
    """What somebody said."""

    type: Literal["message"]
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[TextPart]


class CallItem(Strict):
    """A call that the model made."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class ResultItem(Strict):
    """What a call came to."""

    type: Literal["function_call_output"]
    call_id: str
    output: str | list[TextPart]


Item = Annotated[MessageItem | CallItem | ResultItem, Field(discriminator="type")]


class FunctionTool(Strict):
    """What may be called."""

    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def as_chat(self) -> dict[str, Any]:
        """As chat completions list it."""
        function = self.model_dump(exclude_none=True, exclude={"type"})
        return {"type": "function", "function": function}


class TextFormat(Strict):
    """What the answer's text must be."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> TextFormat:
        if (self.type == "json_schema") != (self.schema_ is not None):
            raise ValueError("a schema belongs to type 'json_schema', and to no other")
        return self


class TextOptions(Strict):
    """Of the answer's text."""

    format: TextFormat | None = None


class StreamOptions(Strict):
    """How to stream."""

    include_obfuscation: bool | None = None


class ResponsesRequest(Strict):
    """`POST /v1/responses`."""

    model: str
    input: str | Annotated[list[Item], Field(min_length=1)]
    instructions: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Temperature | None = None
    top_p: Probability | None = None
    max_output_tokens: Count | None = None
    include: list[str] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_TOP_LOGPROBS)] | None = None
    text: TextOptions | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Any = None
    metadata: dict[str, str] | None = None

    @property
    def tells_logprobs(self) -> bool:
        """Whether the answer says log probabilities."""
        return _LOGPROBS in (self.include or ())

    @property
    def active_tools(self) -> list[dict[str, Any]]:
        """The tools that may be called, as chat completions list them."""
        if self.tool_choice == "none":
            return []
        return [tool.as_chat() for tool in self.tools or ()]

    def messages(self) -> list[dict[str, Any]]:
        """The conversation as chat messages: what the model said and called in one go is one message."""
        told = [] if self.instructions is None else [{"role": "system", "content": self.instructions}]
        if isinstance(self.input, str):
            return [*told, {"role": "user", "content": self.input}]
        return [*told, *_messages(self.input)]

    def sampling(self) -> SamplingRequest:
        """What it says of sampling."""
        names = ("temperature", "top_p", "max_output_tokens", "tool_choice")
        given = {name: getattr(self, name) for name in names}
        wanted = None if self.text is None else self.text.format
        constrained = wanted is not None and wanted.type != "text"
        return SamplingRequest(
            temperature=self.temperature,
            top_p=self.top_p,
            max_tokens=self.max_output_tokens,
            top_logprobs=(self.top_logprobs or 0) if self.tells_logprobs else 0,
            constraint=Constraint(wanted.type, wanted.schema_) if constrained else None,  # type: ignore[union-attr,arg-type]
            constraint_param="text.format",
            told={name: value for name, value in given.items() if value is not None},
        )


def parse_responses_request(body: bytes) -> ResponsesRequest:
    """Check a request's body.

    Raises:
        ApiError: it is not JSON, not of the right types, or asks for what is not implemented.
    """
    fields = read_fields(body)
    for name in ("previous_response_id", "conversation"):
        if fields.pop(name, None) is not None:
            raise unsupported(
                name, "no response is kept on this endpoint; send the whole conversation as input"
            )
    kept = drop_neutral(
        without_harmless(fields, (HARMLESS - {"metadata"}) | {"prompt_cache_options"}), _NEUTRAL
    )
    kept.update(_told_nothing(kept))
    drop_neutral_in_each(kept, "input", _ITEM_NEUTRAL, _BESIDE_ITEMS)
    if isinstance(kept.get("input"), list):
        kept["input"] = [
            {"type": "message", **{key: value for key, value in item.items() if value is not None}}
            if isinstance(item, dict)
            else item
            for item in kept["input"]
        ]
    drop_neutral_in_each(kept, "tools", _TOOL_NEUTRAL, _BESIDE_ITEMS)
    request = check_fields(ResponsesRequest, kept)
    unknown = [name for name in request.include or () if name not in _INCLUDABLE]
    if unknown:
        raise unsupported("include", f"there is no {unknown[0]} to tell")
    if request.tool_choice not in (None, "auto", "none"):
        raise forced_call()
    if request.stream_options is not None and not request.stream:
        raise invalid("stream_options needs stream to be true", param="stream_options")
    return request


def _told_nothing(fields: dict[str, Any]) -> dict[str, Any]:
    """Options of text and reasoning without those members that say nothing."""
    cleared: dict[str, Any] = {}
    if isinstance(fields.get("text"), dict):
        cleared["text"] = drop_neutral(fields["text"], {"verbosity": ()}, "text.")
    reasoning = fields.pop("reasoning", None)
    if isinstance(reasoning, dict):
        nothing: Neutral = dict.fromkeys(reasoning, ()) | {"effort": ("none",)}
        drop_neutral(reasoning, nothing, "reasoning.")
    elif reasoning is not None:
        raise invalid("reasoning: expected an object", param="reasoning")
    return cleared


def _messages(items: list[Item]) -> Iterator[dict[str, Any]]:
    turn: dict[str, Any] | None = None
    for item in items:
        if isinstance(item, CallItem):
            turn = turn or {"role": "assistant", "content": ""}
            function = {"name": item.name, "arguments": item.arguments}
            turn.setdefault("tool_calls", []).append(
                {"id": item.call_id, "type": "function", "function": function}
            )
            continue
        if turn is not None:
            yield turn
            turn = None
        message = _message(item)
        if message["role"] == "assistant":
            turn = message  # its calls may follow
        else:
            yield message
    if turn is not None:
        yield turn


def _message(item: MessageItem | ResultItem) -> dict[str, Any]:
    if isinstance(item, ResultItem):
        return {"role": "tool", "tool_call_id": item.call_id, "content": _text(item.output)}
    return {"role": "system" if item.role == "developer" else item.role, "content": _text(item.content)}


def _text(content: str | list[TextPart]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


def echoed(request: ResponsesRequest) -> Mapping[str, Any]:
    """What a response repeats of its request."""
    return {
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "metadata": request.metadata or {},
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "temperature": request.temperature,
        "text": {"format": {"type": "text"}}
        if request.text is None or request.text.format is None
        else request.text.model_dump(by_alias=True, exclude_none=True),
        "tool_choice": request.tool_choice or "auto",
        "tools": [{"strict": None, "parameters": None, **tool.model_dump()} for tool in request.tools or ()],
        "top_p": request.top_p,
        "truncation": "disabled",
    }
