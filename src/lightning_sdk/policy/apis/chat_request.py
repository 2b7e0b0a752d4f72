"""The request of `/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from lightning_sdk.policy.apis.fields import (
    MOST_TOP_LOGPROBS,
    CompletionFields,
    check_completion_fields,
)
from lightning_sdk.policy.apis.reading import (
    Count,
    FunctionName,
    Neutral,
    Strict,
    check_fields,
    drop_neutral,
    drop_neutral_in_each,
    read_fields,
    without_harmless,
)
from lightning_sdk.policy.engine import Constraint
from lightning_sdk.policy.errors import forced_call, invalid
from lightning_sdk.policy.sampling import SamplingRequest

# Parameters that change nothing in the answer.
HARMLESS: Final = frozenset(
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
_NEUTRAL: Final[Neutral] = {
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
_MESSAGE_NEUTRAL: Final[Neutral] = {
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "parsed": (),
    "refusal": (),
}


class TextPart(Strict):
    """A part of a message's content. Only text can be read."""

    type: Literal["text"]
    text: str


class FunctionCall(Strict):
    """What a tool call calls. `arguments` is JSON text, kept as it came."""

    name: str
    arguments: str
    # Written beside them by clients that parsed the answer.
    parsed_arguments: Annotated[Any, Field(exclude=True)] = None


class ToolCall(Strict):
    """A tool call in an assistant's message."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(Strict):
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


class FunctionTool(Strict):
    """What may be called."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    """A tool as the API lists it."""

    type: Literal["function"]
    function: FunctionTool


class JsonSchema(Strict):
    """The schema of a response format. Its name and description are for people."""

    name: str | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(Strict):
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

    def constraint(self) -> Constraint | None:
        """What an engine must do about it."""
        if self.type == "text":
            return None
        return Constraint(self.type, self.json_schema.schema_ if self.json_schema else None)


class ChatRequest(CompletionFields):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    response_format: ResponseFormat | None = None
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_TOP_LOGPROBS)] | None = None
    tools: list[Tool] | None = None
    tool_choice: Any = None

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
        return self.sampled(
            {"max_completion_tokens": self.max_completion_tokens, "tool_choice": self.tool_choice},
            max_tokens=self.token_limit,
            top_logprobs=self.top_logprobs or 0,
            constraint=None if self.response_format is None else self.response_format.constraint(),
        )


def parse_chat_request(body: bytes) -> ChatRequest:
    """Check a request's body.

    Raises:
        ApiError: it is not JSON, not of the right types, or asks for what is not implemented.
    """
    request = check_fields(ChatRequest, _without_neutral(read_fields(body)))
    check_completion_fields(request)
    if request.top_logprobs and not request.logprobs:
        raise invalid("top_logprobs needs logprobs to be true", param="top_logprobs")
    both = (request.max_tokens, request.max_completion_tokens)
    if None not in both and both[0] != both[1]:
        raise invalid("max_tokens and max_completion_tokens disagree: give one", param="max_tokens")
    if request.tool_choice not in (None, "auto", "none"):
        raise forced_call()
    return request


def _without_neutral(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that say something, once those are refused that cannot be honoured."""
    kept = drop_neutral(without_harmless(fields, HARMLESS), _NEUTRAL)
    drop_neutral_in_each(kept, "messages", _MESSAGE_NEUTRAL)
    return kept
