"""What messages say, read from the records when somebody looks: most of their bytes, and training needs none."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from lightning_sdk.errors import WireError
from lightning_sdk.mdp.episode import Transition

_ACTION_KEYS: Final = ("message", "finish_reason")


class EpisodeText:
    """The transitions of one attempt with their text: assembled all together, at the first look."""

    __slots__ = ("_keys", "_load", "_loaded", "_source")

    def __init__(
        self,
        load: Callable[[str, int], Sequence[Transition]],
        rollout_id: str,
        attempt: int,
        call_ids: Iterable[str],
        choices: Iterable[int],
    ) -> None:
        self._load = load
        self._source = (rollout_id, attempt)
        self._keys = (call_ids, choices)
        self._loaded: list[Transition] | None = None

    def find(self, at: int) -> Transition:
        """The transition at a position.

        Raises:
            WireError: the records do not tell of it any more.
        """
        if self._loaded is None:
            self._loaded = self._align()
        return self._loaded[at]

    def _align(self) -> list[Transition]:
        """By call and choice, since a record that came in the meantime may have moved them."""
        by_key: dict[tuple[str, int], list[Transition]] = defaultdict(list)
        for each in reversed(self._load(*self._source)):
            by_key[each.call_id, each.choice].append(each)
        try:
            return [by_key[key].pop() for key in zip(*self._keys, strict=True)]
        except IndexError:
            raise WireError(
                "the records of a rollout no longer tell of a call that its columns have: read the rollout again"
            ) from None


class LateObservation(Mapping[str, Any]):
    """An observation, equal to the dict that it stands for. What the response had to be is known at once."""

    __slots__ = ("_at", "_response_format", "_text")

    def __init__(self, text: EpisodeText, at: int, response_format: Any) -> None:
        self._text = text
        self._at = at
        self._response_format = response_format

    def __getitem__(self, key: str) -> Any:
        if key == "response_format":
            return self._response_format
        return self._text.find(self._at).observation[key]

    # Which keys there are beyond the usual depends on the API.
    def __iter__(self) -> Iterator[str]:
        return iter(self._text.find(self._at).observation)

    def __len__(self) -> int:
        return len(self._text.find(self._at).observation)

    def __repr__(self) -> str:
        return repr(dict(self))

    def __reduce__(self) -> tuple[type, tuple[dict[str, Any]]]:
        # A copy elsewhere has nothing to read from.
        return dict, (dict(self),)


class LateAction(Mapping[str, Any]):
    """An action, equal to the dict that it stands for. Its finish reason is known at once."""

    __slots__ = ("_at", "_finish_reason", "_text")

    def __init__(self, text: EpisodeText, at: int, finish_reason: str | None) -> None:
        self._text = text
        self._at = at
        self._finish_reason = finish_reason

    def __getitem__(self, key: str) -> Any:
        if key == "finish_reason":
            return self._finish_reason
        action = self._text.find(self._at).action
        if action is None:
            raise KeyError(key)
        return action[key]

    def __iter__(self) -> Iterator[str]:
        return iter(_ACTION_KEYS)

    def __len__(self) -> int:
        return len(_ACTION_KEYS)

    def __repr__(self) -> str:
        return repr(dict(self))

    def __reduce__(self) -> tuple[type, tuple[dict[str, Any]]]:
        return dict, (dict(self),)
