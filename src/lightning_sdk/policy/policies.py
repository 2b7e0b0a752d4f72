"""The policies of one endpoint: each an engine with a name, the sampling of its training, and its records."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from lightning_sdk.errors import ConfigError
from lightning_sdk.policy.chat_format import ChatFormat
from lightning_sdk.policy.engine import Engine
from lightning_sdk.policy.errors import model_not_found
from lightning_sdk.policy.recording import TokenRecorder


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSampling:
    """How the calls of training rollouts are sampled, whatever they ask for.

    Only the temperature can be chosen: top-p is 1, and nothing else shapes the distribution, so that what is
    sampled is the policy's own.
    """

    temperature: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what is no distribution to learn from."""
        if not 0.01 <= self.temperature <= 2:
            raise ConfigError(
                f"the training temperature is {self.temperature}: give a number from 0.01 to 2, usually 1"
            )


@dataclass(slots=True)
class Policy:
    """One policy that is served. Its name is the model's id in the API, and the policy in records."""

    name: str
    engine: Engine
    recorder: TokenRecorder
    training: TrainingSampling = field(default_factory=TrainingSampling)
    created_s: int = field(default_factory=lambda: int(time.time()))
    format: ChatFormat = field(init=False)

    def __post_init__(self) -> None:
        """Find out how the model writes conversations."""
        self.format = ChatFormat(self.engine.tokenizer)


class Policies:
    """Those that are served, in the order in which they were given; the first is the default."""

    def __init__(self, policies: Iterable[Policy]) -> None:
        """Take them.

        Raises:
            ConfigError: there is none, or two have one name, or a name cannot be sent in a header.
        """
        self._by_name: dict[str, Policy] = {}
        for policy in policies:
            name = policy.name
            if not (name.isascii() and name.isprintable() and name == name.strip() and name):
                raise ConfigError(
                    f"a policy cannot be called {name!r}: a header must carry it, so use plain ASCII"
                )
            if policy.name in self._by_name:
                raise ConfigError(f"two policies are called {policy.name!r}: give each a name of its own")
            self._by_name[policy.name] = policy
        if not self._by_name:
            raise ConfigError("there is no policy to serve: name at least one model")

    def get(self, header: str | None, model: str, *, routed: bool = False, any_model: bool = False) -> Policy:
        """The policy that answers a request.

        Args:
            header: what the request's header x-lightning-policy says; it wins.
            model: the request's model.
            routed: the request was made for another model and sent here by the client: without the header the
                default answers, whatever its model.
            any_model: the default answers also where the request's model is none of these.

        Raises:
            ApiError: there is none of that name.
        """
        if header is None and routed:
            return self.default
        name = model if header is None else header
        found = self._by_name.get(name)
        if found is None and any_model and header is None:
            return self.default
        if found is None:
            raise model_not_found(name, self.names)
        return found

    @property
    def default(self) -> Policy:
        """The first."""
        return next(iter(self._by_name.values()))

    @property
    def names(self) -> tuple[str, ...]:
        """Of all of them."""
        return tuple(self._by_name)

    def __iter__(self) -> Iterator[Policy]:
        """All of them."""
        return iter(self._by_name.values())

    def __len__(self) -> int:
        """How many there are."""
        return len(self._by_name)
