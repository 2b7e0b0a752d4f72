"""Those whom the broker of work speaks with, the leases between them, and what it refuses to take from outside."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from lightning_sdk._proto.work_pb2 import Held, WorkerHello
from lightning_sdk.errors import WireError

# A job carries a row of the data set, a result a message and a traceback.
MAX_JOB_BYTES: Final = 4 << 20
MAX_RESULT_BYTES: Final = 1 << 20
MAX_SLOTS: Final = 1024
MAX_AGENTS: Final = 256
MAX_PEERS: Final = 1024
# Leases that one side says it holds.
MAX_HELD: Final = 4 * MAX_SLOTS
MAX_WANTED: Final = 1 << 30
_MAX_ID: Final = 256
_MAX_NAME: Final = 256
_ID: Final = re.compile(rf"[!-~]{{1,{_MAX_ID}}}")


State = Literal["allotted", "running", "ended"]


@dataclass(frozen=True, slots=True)
class Timing:
    """How long what is silent counts as there."""

    # Whoever has not been heard of for so long is given up.
    expiry_s: float = 15.0

    @property
    def heartbeat_s(self) -> float:
        """How often each side says that it is there: three may get lost."""
        return self.expiry_s / 4


class Outbox(Protocol):
    """The way to a peer that is connected."""

    def put(self, message: Any) -> None:
        """Send a message, after those before it. Never blocks or fails: a broken connection is told elsewhere."""

    def close(self, reason: str) -> None:
        """End the connection. Idempotent."""


@dataclass(slots=True, eq=False)
class Lease:
    """One attempt of one rollout on one worker."""

    id: str
    # None: nobody wants it any more, and its worker was told to end it.
    runner: Runner | None
    worker: Worker
    # allotted: the runner has not answered yet; ended: the worker has the result, and its slot is free.
    state: State
    since_s: float
    # Of the job; before there is one: "" and 0.
    rollout_id: str = ""
    attempt: int = 0
    # The runner wants it to end.
    cancelled: bool = False
    # The connection on which the runner was given the result.
    told: Outbox | None = None

    def is_of(self, held: Held | Any) -> bool:
        """Whether the message means the same attempt."""
        return (self.rollout_id, self.attempt) == (held.rollout_id, held.attempt)


@dataclass(slots=True, eq=False)
class Worker:
    """A worker, connected or not; of one that only a runner has told of nothing else is known."""

    id: str
    heard_s: float
    name: str = ""
    agents: frozenset[str] = frozenset()
    slots: int = 0
    draining: bool = False
    out: Outbox | None = None
    leases: dict[str, Lease] = field(default_factory=dict)

    @property
    def free(self) -> int:
        """Slots that can be given away now."""
        if self.out is None or self.draining:
            return 0
        return self.slots - sum(lease.state != "ended" for lease in self.leases.values())


@dataclass(slots=True, eq=False)
class Runner:
    """A runner, connected or not; of one that only a worker has told of nothing else is known."""

    id: str
    heard_s: float
    out: Outbox | None = None
    # Jobs that wait for a slot, by agent.
    wanted: dict[str, int] = field(default_factory=dict)
    leases: dict[str, Lease] = field(default_factory=dict)
    # When it was last given a slot, in slots that were given to anybody.
    served: int = 0

    @property
    def busy(self) -> int:
        """Slots that it has."""
        return sum(lease.state != "ended" for lease in self.leases.values())


def check_id(value: str, what: str) -> str:
    """An id from outside.

    Raises:
        WireError: it is none.
    """
    if not _ID.fullmatch(value):
        raise WireError(f"{what} of {len(value)} characters: expected 1 to {_MAX_ID} printable ASCII ones")
    return value


def check_hello(hello: WorkerHello) -> None:
    """What a worker says of itself.

    Raises:
        WireError: it cannot be.
    """
    check_id(hello.worker, "the id of a worker")
    if len(hello.name) > _MAX_NAME or not hello.name.isprintable():
        raise WireError(f"the name of a worker has at most {_MAX_NAME} characters, all printable")
    if not 1 <= len(hello.agents) <= MAX_AGENTS:
        raise WireError(f"a worker that offers {len(hello.agents)} agents: expected 1 to {MAX_AGENTS}")
    for agent in hello.agents:
        check_agent(agent)
    if not 1 <= hello.slots <= MAX_SLOTS:
        raise WireError(f"a worker with {hello.slots} slots: expected 1 to {MAX_SLOTS}")


def check_agent(agent: str) -> None:
    """The name of an agent.

    Raises:
        WireError: it is none.
    """
    if not 1 <= len(agent) <= _MAX_NAME or not agent.isprintable():
        raise WireError(
            f"the name of an agent of {len(agent)} characters: expected 1 to {_MAX_NAME}, all printable"
        )


def check_held(held: Any) -> dict[str, Held]:
    """The leases that a peer holds, by their names.

    Raises:
        WireError: there are too many, or one is none.
    """
    if len(held) > MAX_HELD:
        raise WireError(f"{len(held)} leases are held: expected at most {MAX_HELD}")
    for each in held:
        check_id(each.lease, "a lease")
        check_id(each.peer, "the other side of a lease")
        check_id(each.rollout_id, "the rollout of a lease")
    return {each.lease: each for each in held}
