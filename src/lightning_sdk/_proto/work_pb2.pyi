from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FromRunner(_message.Message):
    __slots__ = ("hello", "wanted", "job", "decline", "cancel", "settled", "heartbeat", "goodbye")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    DECLINE_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    hello: RunnerHello
    wanted: Wanted
    job: LeasedJob
    decline: str
    cancel: str
    settled: str
    heartbeat: Heartbeat
    goodbye: Goodbye
    def __init__(self, hello: _Optional[_Union[RunnerHello, _Mapping]] = ..., wanted: _Optional[_Union[Wanted, _Mapping]] = ..., job: _Optional[_Union[LeasedJob, _Mapping]] = ..., decline: _Optional[str] = ..., cancel: _Optional[str] = ..., settled: _Optional[str] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ...) -> None: ...

class ToRunner(_message.Message):
    __slots__ = ("welcome", "slot", "result", "lost", "returned", "capacity", "heartbeat")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    RETURNED_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    slot: Slot
    result: LeasedResult
    lost: Lost
    returned: str
    capacity: Capacity
    heartbeat: Heartbeat
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., slot: _Optional[_Union[Slot, _Mapping]] = ..., result: _Optional[_Union[LeasedResult, _Mapping]] = ..., lost: _Optional[_Union[Lost, _Mapping]] = ..., returned: _Optional[str] = ..., capacity: _Optional[_Union[Capacity, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ...) -> None: ...

class FromWorker(_message.Message):
    __slots__ = ("hello", "result", "released", "draining", "heartbeat", "goodbye")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    hello: WorkerHello
    result: LeasedResult
    released: Released
    draining: Draining
    heartbeat: Heartbeat
    goodbye: Goodbye
    def __init__(self, hello: _Optional[_Union[WorkerHello, _Mapping]] = ..., result: _Optional[_Union[LeasedResult, _Mapping]] = ..., released: _Optional[_Union[Released, _Mapping]] = ..., draining: _Optional[_Union[Draining, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ...) -> None: ...

class ToWorker(_message.Message):
    __slots__ = ("welcome", "job", "cancel", "settled", "heartbeat")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    job: LeasedJob
    cancel: str
    settled: str
    heartbeat: Heartbeat
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., job: _Optional[_Union[LeasedJob, _Mapping]] = ..., cancel: _Optional[str] = ..., settled: _Optional[str] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ...) -> None: ...

class RunnerHello(_message.Message):
    __slots__ = ("runner", "held")
    RUNNER_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    runner: str
    held: _containers.RepeatedCompositeFieldContainer[Held]
    def __init__(self, runner: _Optional[str] = ..., held: _Optional[_Iterable[_Union[Held, _Mapping]]] = ...) -> None: ...

class WorkerHello(_message.Message):
    __slots__ = ("worker", "name", "agents", "slots", "draining", "held")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    worker: str
    name: str
    agents: _containers.RepeatedScalarFieldContainer[str]
    slots: int
    draining: bool
    held: _containers.RepeatedCompositeFieldContainer[Held]
    def __init__(self, worker: _Optional[str] = ..., name: _Optional[str] = ..., agents: _Optional[_Iterable[str]] = ..., slots: _Optional[int] = ..., draining: bool = ..., held: _Optional[_Iterable[_Union[Held, _Mapping]]] = ...) -> None: ...

class Held(_message.Message):
    __slots__ = ("lease", "peer", "rollout_id", "attempt", "ended")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    lease: str
    peer: str
    rollout_id: str
    attempt: int
    ended: bool
    def __init__(self, lease: _Optional[str] = ..., peer: _Optional[str] = ..., rollout_id: _Optional[str] = ..., attempt: _Optional[int] = ..., ended: bool = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("heartbeat_ms", "expiry_ms")
    HEARTBEAT_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRY_MS_FIELD_NUMBER: _ClassVar[int]
    heartbeat_ms: int
    expiry_ms: int
    def __init__(self, heartbeat_ms: _Optional[int] = ..., expiry_ms: _Optional[int] = ...) -> None: ...

class Wanted(_message.Message):
    __slots__ = ("agent", "more")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    agent: str
    more: int
    def __init__(self, agent: _Optional[str] = ..., more: _Optional[int] = ...) -> None: ...

class Slot(_message.Message):
    __slots__ = ("lease", "agent", "worker", "worker_name")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    WORKER_NAME_FIELD_NUMBER: _ClassVar[int]
    lease: str
    agent: str
    worker: str
    worker_name: str
    def __init__(self, lease: _Optional[str] = ..., agent: _Optional[str] = ..., worker: _Optional[str] = ..., worker_name: _Optional[str] = ...) -> None: ...

class LeasedJob(_message.Message):
    __slots__ = ("lease", "agent", "rollout_id", "attempt", "job", "runner")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    RUNNER_FIELD_NUMBER: _ClassVar[int]
    lease: str
    agent: str
    rollout_id: str
    attempt: int
    job: bytes
    runner: str
    def __init__(self, lease: _Optional[str] = ..., agent: _Optional[str] = ..., rollout_id: _Optional[str] = ..., attempt: _Optional[int] = ..., job: _Optional[bytes] = ..., runner: _Optional[str] = ...) -> None: ...

class LeasedResult(_message.Message):
    __slots__ = ("lease", "rollout_id", "attempt", "result")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    lease: str
    rollout_id: str
    attempt: int
    result: bytes
    def __init__(self, lease: _Optional[str] = ..., rollout_id: _Optional[str] = ..., attempt: _Optional[int] = ..., result: _Optional[bytes] = ...) -> None: ...

class Lost(_message.Message):
    __slots__ = ("lease", "reason")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    lease: str
    reason: str
    def __init__(self, lease: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Released(_message.Message):
    __slots__ = ("lease", "begun")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    lease: str
    begun: bool
    def __init__(self, lease: _Optional[str] = ..., begun: bool = ...) -> None: ...

class Capacity(_message.Message):
    __slots__ = ("pools",)
    POOLS_FIELD_NUMBER: _ClassVar[int]
    pools: _containers.RepeatedCompositeFieldContainer[Pool]
    def __init__(self, pools: _Optional[_Iterable[_Union[Pool, _Mapping]]] = ...) -> None: ...

class Pool(_message.Message):
    __slots__ = ("agents", "slots")
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    agents: _containers.RepeatedScalarFieldContainer[str]
    slots: int
    def __init__(self, agents: _Optional[_Iterable[str]] = ..., slots: _Optional[int] = ...) -> None: ...

class Draining(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
