"""OpenAI's Responses API: items in, items out, said as chat messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lightning_sdk.errors import WireError
from lightning_sdk.mdp.apis.answer import Answer, AnswerChoice, text_or_none
from lightning_sdk.mdp.apis.conversation import (
    Conversation,
    Turn,
    content_of,
    function_tool,
    has_type,
    text_of,
)

# What the server keeps of the conversation, and so the request does not say.
_KEPT_BY_SERVER = ("previous_response_id", "conversation", "prompt")
_OF_MODEL = ("reasoning", "function_call", "custom_tool_call")
_FINISH_REASONS = {"max_output_tokens": "length", "content_filter": "content_filter"}


def read_observation(request: Any) -> dict[str, Any]:
    """The input of a parsed request as chat messages; with what the server adds, by name.

    Raises:
        WireError: it is no such request.
    """
    if not isinstance(request, dict):
        raise WireError("a request for a response is a JSON object, this one is not")
    conversation = Conversation()
    instructions = request.get("instructions")
    if isinstance(instructions, str) and instructions:
        conversation.add({"role": "system", "content": instructions})
    given = request.get("input")
    if isinstance(given, str):
        conversation.add({"role": "user", "content": given})
    elif isinstance(given, list):
        for item in given:
            _add_item(conversation, _checked(item))
    elif given is not None or not any(request.get(key) for key in _KEPT_BY_SERVER):
        raise WireError(
            "the input of a request for a response is a text or a list of items, this one is neither"
        )
    tools = request.get("tools")
    return {
        "messages": conversation.messages(),
        "tools": [_tool(tool) for tool in tools] if isinstance(tools, list) else None,
        "tool_choice": _tool_choice(request.get("tool_choice")),
        "response_format": _response_format(request.get("text")),
        "chat_template_kwargs": request.get("chat_template_kwargs"),
        **{key: request[key] for key in _KEPT_BY_SERVER if request.get(key) is not None},
    }


def read_answer(response: Any) -> Answer:
    """Read a parsed response body. It has one choice, or none where nothing was generated.

    Raises:
        WireError: it is no response.
    """
    items = response.get("output") if isinstance(response, dict) else None
    if not isinstance(items, list):
        raise WireError("a response holds a list of output items, this one does not")
    turn = Turn()
    for item in items:
        # Items of the server's own tools stand between; what the model itself said is one answer.
        _add_said(turn, _checked(item))
    said = turn.message()
    usage = response.get("usage")
    return Answer(
        response_id=text_or_none(response.get("id")),
        model=text_or_none(response.get("model")),
        usage=_usage(usage) if isinstance(usage, dict) else None,
        prompt_token_ids=None,
        choices=(
            AnswerChoice(
                index=0,
                message=said,
                finish_reason=_finish_reason(response, said),
                token_ids=None,
                logprobs=_logprobs(items),
            ),
        ),
    )


def _checked(item: Any) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise WireError("an item of a response, or of its input, is not a JSON object")
    return item


def _add_item(conversation: Conversation, item: dict[str, Any]) -> None:
    """An item of the input: of the model's, of a tool's, or of others."""
    kind = _kind(item)
    if kind in _OF_MODEL or (kind == "message" and item.get("role") == "assistant"):
        _add_said(conversation.turn, item)
    elif kind == "message":
        conversation.add({"role": item.get("role"), "content": content_of(item.get("content"))})
    elif kind in ("function_call_output", "custom_tool_call_output"):
        output = content_of(item.get("output"))
        conversation.add({"role": "tool", "tool_call_id": item.get("call_id"), "content": output})
    else:
        # A tool of the server's, or what we do not know: as it is.
        conversation.add(item)


def _kind(item: Mapping[str, Any]) -> Any:
    return item.get("type") or ("message" if "role" in item else None)


def _add_said(turn: Turn, item: Mapping[str, Any]) -> None:
    """An item that the model itself made; of others nothing."""
    kind = _kind(item)
    if kind == "message":
        _add_message(turn, item.get("content"))
    elif kind == "reasoning":
        for parts in (item.get("content"), item.get("summary")):
            if isinstance(parts, list) and (text := text_of(parts)):
                turn.think(text)
                break
    elif kind == "function_call":
        turn.call_tool(item.get("call_id"), item.get("name"), item.get("arguments"))
    elif kind == "custom_tool_call":
        turn.call_custom_tool(item.get("call_id"), item.get("name"), item.get("input"))


def _add_message(turn: Turn, content: Any) -> None:
    if not isinstance(content, list):
        turn.say(content)
        return
    said = [part for part in content if not has_type(part, "refusal")]
    if said:
        turn.say(content_of(said))
    for part in content:
        if has_type(part, "refusal"):
            turn.refuse(str(part.get("refusal", "")))


def _finish_reason(response: Mapping[str, Any], said: Mapping[str, Any]) -> str | None:
    status = response.get("status")
    if status == "completed":
        return "tool_calls" if said.get("tool_calls") else "stop"
    if status == "incomplete":
        details = response.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else None
        return _FINISH_REASONS.get(reason, "incomplete") if isinstance(reason, str) else "incomplete"
    return status if status in ("failed", "cancelled") else None


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **usage,
        "prompt_tokens": usage.get("input_tokens"),
        "completion_tokens": usage.get("output_tokens"),
    }


def _logprobs(items: Sequence[Any]) -> list[float] | None:
    """Those of the text; None unless each part of it has them."""
    found: list[float] = []
    for item in items:
        content = item.get("content") if item.get("type") == "message" else None
        for part in content if isinstance(content, list) else ():
            entries = part.get("logprobs") if isinstance(part, dict) else None
            if not entries:
                return None
            try:
                found += [float(entry["logprob"]) for entry in entries]
            except (TypeError, KeyError, ValueError, OverflowError):
                raise WireError("the log probabilities of a response are not a list of numbers") from None
    return found or None


def _tool(tool: Any) -> Any:
    if not isinstance(tool, dict) or tool.get("type") != "function" or "function" in tool:
        return tool
    return function_tool(
        tool.get("name"), tool.get("description"), tool.get("parameters"), strict=tool.get("strict")
    )


def _tool_choice(choice: Any) -> Any:
    if isinstance(choice, dict) and choice.get("type") == "function" and "name" in choice:
        return {"type": "function", "function": {"name": choice["name"]}}
    return choice


def _response_format(text: Any) -> Any:
    given = text.get("format") if isinstance(text, dict) else None
    if not isinstance(given, dict) or given.get("type") == "text":
        return None
    if given.get("type") == "json_schema":
        schema = {key: value for key, value in given.items() if key != "type"}
        return {"type": "json_schema", "json_schema": schema}
    return given
