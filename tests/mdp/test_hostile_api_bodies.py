"""Bodies of every API as hostile bytes: whatever comes is a problem of that call, and no error of ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_sdk.errors import WireError
from lightning_sdk.mdp.apis import APIS
from support.record_factory import to_json

# Words that the readers look for, so that random JSON gets past their first checks.
# fmt: off
KEYS = [
    "type", "role", "content", "text", "input", "output", "messages", "choices", "id", "item", "delta",
    "response", "message", "index", "output_index", "usage", "content_block", "summary", "system",
    "tools", "refusal", "status", "incomplete_details", "reason", "logprobs", "prompt",
]
VALUES = [
    "message", "reasoning", "function_call", "text", "tool_result", "tool_use", "refusal",
    "output_text", "message_start", "assistant", "completed", "content_block_start",
    "content_block_delta", "response.completed", "response.output_item.added", "incomplete",
    "text_delta", "response.output_text.delta",
]
# fmt: on
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(KEYS) | st.text(max_size=3), inner | st.sampled_from(VALUES), max_size=6
        )
    ),
    max_leaves=25,
)


@settings(max_examples=300, deadline=None)
@given(api=st.sampled_from(sorted(APIS)), value=JSON, events=st.lists(JSON, max_size=5))
def test_hostile_bytes_are_no_error_of_ours(api: str, value: Any, events: list[Any]) -> None:
    decoder = APIS[api]
    for read, given_ in (
        (decoder.read_observation, value),
        (decoder.read_answer, value),
        (decoder.join_events, [to_json(event) for event in events]),
    ):
        assert raised_by(read, given_) in (None, WireError)


def raised_by(read: Callable[[Any], object], given_: Any) -> type[Exception] | None:
    try:
        read(given_)
    except Exception as error:
        return type(error)
    return None
