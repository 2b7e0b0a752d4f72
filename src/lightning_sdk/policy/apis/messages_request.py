"""The request of Anthropic's `/v1/messages`, and the chat messages that its blocks are."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from lightning_sdk.policy.apis.reading import (
    Count,
    FunctionName,
    Neutral,
    Strict,
    check_fields,
    check_stops,
    drop_neutral,
    drop_neutral_in_each,
    read_fields,
    without_harmless,
)
from lightning_sdk.policy.engine import Constraint
from lightning_sdk.policy.errors import forced_call, invalid, unsupported
from lightning_sdk.policy.sampling import SHAPING, SamplingRequest

_HARMLESS: Final = frozenset(
    {
        "cache_control",
        "diagnostics",
        "inference_geo",
        "metadata",
        "service_tier",
        "user_profile_id",
        "workspace_id",
    }
)
_NEUTRAL: Final[Neutral] = {
    "container": (),
    "context_management": (),
    "mcp_servers": ([],),
    "speed": ("standard",),
    "thinking": ({"type": "disabled"},),
}
_TOOL_NEUTRAL: Final[Neutral] = {
    "allowed_callers": (["direct"],),
    "defer_loading": (False,),
    "input_examples": ([],),
}
_TOOL_HARMLESS: Final = frozenset({"cache_control", "eager_input_streaming", "strict"})


class TextBlock(Strict):
    """A block of text."""

    type: Literal["text"]
    text: str
    citations: Annotated[list[Any], Field(max_length=0)] | None = None
    cache_control: Any = None


class ToolUseBlock(Strict):
    """A call that the model made."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    cache_control: Any = None
    caller: Any = None


class ToolResultBlock(Strict):
    """What a call came to. A model is told the content of an error as that of any other result."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[TextBlock] | None = None
    is_error: bool | None = None
    cache_control: Any = None


class UserMessage(Strict):
    """A turn of the user's."""

    role: Literal["user"]
    content: str | list[TextBlock | ToolResultBlock]


class AssistantMessage(Strict):
    """A turn of the model's."""

    role: Literal["assistant"]
    content: str | list[TextBlock | ToolUseBlock]


class FunctionTool(Strict):
    """What may be called."""

    type: Literal["custom"] | None = None
    name: FunctionName
    description: str | None = None
    input_schema: dict[str, Any]

    def as_chat(self) -> dict[str, Any]:
        """As chat completions list it."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        return {"type": "function", "function": {**function, "parameters": self.input_schema}}


class ToolChoice(Strict):
    """Whether tools may be called."""

    type: Literal["auto", "none", "any", "tool"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class OutputFormat(Strict):
    """What the answer's text must be."""

    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(Strict):
    """Of the answer."""

    format: OutputFormat | None = None


class MessagesRequest(Strict):
    """`POST /v1/messages`."""

    model: str
    max_tokens: Count
    messages: Annotated[
        list[Annotated[UserMessage | AssistantMessage, Field(discriminator="role")]], Field(min_length=1)
    ]
    system: str | list[TextBlock] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    stop_sequences: list[str] | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: ToolChoice | None = None
    output_config: OutputConfig | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return tuple(self.stop_sequences or ())

    @property
    def active_tools(self) -> list[dict[str, Any]]:
        """The tools that may be called, as chat completions list them."""
        if self.tool_choice is not None and self.tool_choice.type == "none":
            return []
        return [tool.as_chat() for tool in self.tools or ()]

    def chat_messages(self) -> list[dict[str, Any]]:
        """The conversation as chat messages: each result of a tool is one."""
        told = [{"role": "system", "content": _text(self.system)}] if self.system else []
        for message in self.messages:
            told += _user(message) if isinstance(message, UserMessage) else [_assistant(message)]
        return told

    def sampling(self) -> SamplingRequest:
        """What it says of sampling."""
        names = ("temperature", "top_p", "top_k", "stop_sequences", "max_tokens")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if self.tool_choice is not None:
            given["tool_choice"] = self.tool_choice.type
        wanted = None if self.output_config is None else self.output_config.format
        return SamplingRequest(
            temperature=self.temperature,
            top_p=self.top_p,
            stop=self.stops,
            max_tokens=self.max_tokens,
            shaping={name: given[name] for name in SHAPING if name in given},
            constraint=None if wanted is None else Constraint("json_schema", wanted.schema_),
            constraint_param="output_config.format",
            told=given,
        )


def parse_messages_request(body: bytes) -> MessagesRequest:
    """Check a request's body.

    Raises:
        ApiError: it is not JSON, not of the right types, or asks for what is not implemented.
    """
    kept = drop_neutral(without_harmless(read_fields(body), _HARMLESS), _NEUTRAL)
    drop_neutral_in_each(kept, "tools", _TOOL_NEUTRAL, _TOOL_HARMLESS)
    if isinstance(kept.get("output_config"), Mapping):
        kept["output_config"] = drop_neutral(kept["output_config"], {"effort": ()}, "output_config.")
    request = check_fields(MessagesRequest, kept)
    check_stops(request.stops, "stop_sequences")
    choice = request.tool_choice
    if choice is not None and choice.type in ("any", "tool"):
        raise forced_call()
    if choice is not None and choice.disable_parallel_tool_use:
        raise unsupported(
            "tool_choice.disable_parallel_tool_use", "how many calls a model writes is not constrained"
        )
    if request.messages[-1].role == "assistant":
        raise invalid(
            "the last message is the assistant's, and its turn cannot be gone on with here: end with the user's",
            param="messages",
        )
    return request


def _user(message: UserMessage) -> Iterator[dict[str, Any]]:
    if isinstance(message.content, str):
        yield {"role": "user", "content": message.content}
        return
    said = [block for block in message.content if isinstance(block, TextBlock)]
    for block in message.content:
        if isinstance(block, ToolResultBlock):
            yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": _text(block.content or "")}
    if said or not message.content:
        yield {"role": "user", "content": _text(said)}


def _assistant(message: AssistantMessage) -> dict[str, Any]:
    if isinstance(message.content, str):
        return {"role": "assistant", "content": message.content}
    said = [block for block in message.content if isinstance(block, TextBlock)]
    calls = [
        {
            "id": block.id,
            "type": "function",
            # As models mostly write it; the API does not carry the text that was sampled.
            "function": {"name": block.name, "arguments": json.dumps(block.input, ensure_ascii=False)},
        }
        for block in message.content
        if isinstance(block, ToolUseBlock)
    ]
    told: dict[str, Any] = {"role": "assistant", "content": _text(said)}
    return {**told, "tool_calls": calls} if calls else told


def _text(content: str | list[TextBlock]) -> str:
    return content if isinstance(content, str) else "".join(block.text for block in content)
