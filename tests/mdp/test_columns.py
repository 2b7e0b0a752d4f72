"""An episode as columns: all of it comes back, text when somebody looks, and other code's columns do not count."""

from __future__ import annotations

import pickle
import random
from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_sdk.errors import WireError
from lightning_sdk.mdp import Episode, Transition, assemble, native_record
from lightning_sdk.mdp.columns import can_decode, decode_episode, encode_episode
from lightning_sdk.mdp.fingerprint import FINGERPRINT_BYTES
from support.random_rollouts import random_rollout
from support.record_factory import Tape, chat_request


def columns_of(episode: Episode) -> bytes:
    columns = encode_episode(episode)
    assert columns is not None
    return columns


def no_text(rollout_id: str, attempt: int) -> Sequence[Transition]:
    raise AssertionError("nobody was to look at the text")


def conversation(turns: int) -> Episode:
    """Each prompt adds a token to the prompt and response before it."""
    tape = Tape()
    tape.start()
    ids: list[int] = []
    for at in range(turns):
        ids = [*ids, at]
        tape.call(f"ca_{at}", request=chat_request("hello", "hi", response_format={"type": "text"}))
        tape.tokens(f"ca_{at}", ids, [100, 200])
        ids = [*ids, 100, 200]
    tape.finish()
    (episode,) = assemble(tape.records)
    return episode


@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.integers(0, 2**32))
def test_everything_comes_back(seed: int) -> None:
    (episode,) = assemble(random_rollout(random.Random(seed), "a"))
    columns = encode_episode(episode)
    if columns is None:
        assert "\\ud800" in repr(episode)
        return
    again = decode_episode(columns, lambda rollout_id, attempt: episode.transitions)
    assert again == episode
    # 1, 1.0 and True are equal, and so are arrays of different types.
    assert repr(again) == repr(episode)
    assert [native_record(each) for each in again.transitions] == [
        native_record(each) for each in episode.transitions
    ]


def test_what_training_reads_needs_no_text() -> None:
    episode = conversation(3)
    again = decode_episode(columns_of(episode), no_text)
    for told, expected in zip(again.transitions, episode.transitions, strict=True):
        assert told.prompt_token_ids == expected.prompt_token_ids
        assert told.response_token_ids == array("i", [100, 200])
        assert told.response_logprobs == array("f", [-0.5, -0.5])
        assert told.parent_call_id == expected.parent_call_id
        assert told.observation["response_format"] == {"type": "text"}
        assert told.action is not None
        assert told.action["finish_reason"] == "stop"


def test_text_is_assembled_once_for_a_whole_episode() -> None:
    episode = conversation(3)
    looks = []

    def load(rollout_id: str, attempt: int) -> Sequence[Transition]:
        looks.append((rollout_id, attempt))
        return episode.transitions

    again = decode_episode(columns_of(episode), load)
    messages = [each.observation["messages"] for each in again.transitions]
    assert messages == [each.observation["messages"] for each in episode.transitions]
    assert [each.action for each in again.transitions] == [each.action for each in episode.transitions]
    assert looks == [("ro_1", 1)]


def test_text_is_found_by_call_where_calls_have_moved_since() -> None:
    episode = conversation(2)
    again = decode_episode(
        columns_of(episode), lambda *_: [*conversation(1).transitions, *episode.transitions][1:]
    )
    assert again.transitions[1].action == episode.transitions[1].action


def test_text_that_is_gone_is_told() -> None:
    again = decode_episode(columns_of(conversation(2)), lambda *_: [])
    with pytest.raises(WireError, match="read the rollout again"):
        again.transitions[0].observation["messages"]


def test_a_copy_that_leaves_the_process_takes_its_text_along() -> None:
    episode = conversation(2)
    again = decode_episode(columns_of(episode), lambda *_: episode.transitions)
    assert pickle.loads(pickle.dumps(again)) == episode


def test_a_conversation_takes_as_many_bytes_as_it_has_tokens() -> None:
    short, long = len(columns_of(conversation(50))), len(columns_of(conversation(100)))
    assert long < 2.2 * short


def test_columns_of_other_code_do_not_count() -> None:
    columns = columns_of(conversation(1))
    assert can_decode(columns)
    assert can_decode(columns[:FINGERPRINT_BYTES])
    assert not can_decode(bytes(FINGERPRINT_BYTES) + columns[FINGERPRINT_BYTES:])
    assert not can_decode(b"")


@pytest.mark.parametrize("cut", [20, 40, -1, -8])
def test_damaged_columns_are_refused(cut: int) -> None:
    with pytest.raises(WireError, match="not the columns of an episode"):
        decode_episode(columns_of(conversation(2))[:cut], no_text)
