"""Anthropic's Messages API: messages of blocks, said as chat messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lightning_sdk.errors import WireError
from lightning_sdk.mdp.apis.answer import Answer, AnswerChoice, text_or_none
from lightning_sdk.mdp.apis.conversation import Conversation, Turn, content_of, function_tool, has_type

_FINISH_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
_TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
# What counts as read by the model.
_INPUT_TOKENS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


def read_observation(request: Any) -> dict[str, Any]:
    """What a parsed request tells the model, as a chat request would.

    Raises:
        WireError: it holds no messages.
    """
    messages = request.get("messages") if isinstance(request, dict) else None
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise WireError("a request for a message holds a list of messages, this one does not")
    conversation = Conversation()
    if request.get("system"):
        conversation.add({"role": "system", "content": content_of(request["system"])})
    for message in messages:
        if message.get("role") == "assistant":
            _add_blocks(conversation.turn, message.get("content"))
        else:
            _add_turn(conversation, message)
    tools = request.get("tools")
    return {
        "messages": conversation.messages(),
        "tools": [_tool(tool) for tool in tools] if isinstance(tools, list) else None,
        "tool_choice": _tool_choice(request.get("tool_choice")),
        "response_format": None,
        "chat_template_kwargs": request.get("chat_template_kwargs"),
    }


def read_answer(response: Any) -> Answer:
    """Read a parsed response body. It has one choice.

    Raises:
        WireError: it is no message.
    """
    blocks = response.get("content") if isinstance(response, dict) else None
    if not isinstance(blocks, list):
        raise WireError("a message of the model holds a list of blocks, this one does not")
    turn = Turn()
    _add_blocks(turn, blocks)
    usage = response.get("usage")
    stop = text_or_none(response.get("stop_reason"))
    return Answer(
        response_id=text_or_none(response.get("id")),
        model=text_or_none(response.get("model")),
        usage=_usage(usage) if isinstance(usage, dict) else None,
        prompt_token_ids=None,
        choices=(
            AnswerChoice(
                index=0,
                message=turn.message(),
                finish_reason=None if stop is None else _FINISH_REASONS.get(stop, stop),
                token_ids=None,
                logprobs=None,
            ),
        ),
    )


def _add_turn(conversation: Conversation, message: Mapping[str, Any]) -> None:
    """A turn of the user's: results of tools are messages of their own."""
    content = message.get("content")
    if not isinstance(content, list):
        conversation.add({"role": message.get("role"), "content": content})
        return
    for block in content:
        if has_type(block, "tool_result"):
            answer = content_of(block.get("content"))
            conversation.add({"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": answer})
    rest = [block for block in content if not has_type(block, "tool_result")]
    if rest or not content:
        conversation.add({"role": message.get("role"), "content": content_of(rest)})


def _add_blocks(turn: Turn, content: Any) -> None:
    """A turn of the model's."""
    if not isinstance(content, list):
        turn.say(content)
        return
    for block in content:
        if not isinstance(block, dict):
            raise WireError("a block of a message is not a JSON object")
        kind = block.get("type")
        if kind == "text":
            turn.say(block.get("text"))
        elif kind == "thinking":
            turn.think(str(block.get("thinking", "")))
        elif kind == "tool_use":
            arguments = json.dumps(block.get("input"), ensure_ascii=False)
            turn.call_tool(block.get("id"), block.get("name"), arguments)
        elif kind != "redacted_thinking":
            # A tool of the server's, or what we do not know: as it is.
            turn.say([block])


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    read = [usage[key] for key in _INPUT_TOKENS if type(usage.get(key)) is int]
    return {
        **usage,
        "prompt_tokens": sum(read) if read else None,
        "completion_tokens": usage.get("output_tokens"),
    }


def _tool(tool: Any) -> Any:
    if not isinstance(tool, dict) or tool.get("type") not in (None, "custom") or "input_schema" not in tool:
        return tool
    return function_tool(
        tool.get("name"), tool.get("description"), tool["input_schema"], strict=tool.get("strict")
    )


def _tool_choice(choice: Any) -> Any:
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind == "tool":
        return {"type": "function", "function": {"name": choice.get("name")}}
    return _TOOL_CHOICES.get(kind, choice) if isinstance(kind, str) else choice
