from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RolloutQuery(_message.Message):
    __slots__ = ("project", "run_id", "task_id", "rollout_id_prefixes", "limit", "call_id_prefixes", "episode_code")
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_ID_PREFIXES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_PREFIXES_FIELD_NUMBER: _ClassVar[int]
    EPISODE_CODE_FIELD_NUMBER: _ClassVar[int]
    project: str
    run_id: str
    task_id: str
    rollout_id_prefixes: _containers.RepeatedScalarFieldContainer[str]
    limit: int
    call_id_prefixes: _containers.RepeatedScalarFieldContainer[str]
    episode_code: bytes
    def __init__(self, project: _Optional[str] = ..., run_id: _Optional[str] = ..., task_id: _Optional[str] = ..., rollout_id_prefixes: _Optional[_Iterable[str]] = ..., limit: _Optional[int] = ..., call_id_prefixes: _Optional[_Iterable[str]] = ..., episode_code: _Optional[bytes] = ...) -> None: ...

class RolloutSummary(_message.Message):
    __slots__ = ("rollout_id", "project", "run_id", "group_id", "task_id", "split", "attempt", "start_ns", "end_ns", "outcome", "root_agent", "calls", "tool_calls", "rewards", "complete", "revision")
    ROLLOUT_ID_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    START_NS_FIELD_NUMBER: _ClassVar[int]
    END_NS_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    ROOT_AGENT_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    REWARDS_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    rollout_id: str
    project: str
    run_id: str
    group_id: str
    task_id: str
    split: str
    attempt: int
    start_ns: int
    end_ns: int
    outcome: str
    root_agent: str
    calls: int
    tool_calls: int
    rewards: int
    complete: bool
    revision: int
    def __init__(self, rollout_id: _Optional[str] = ..., project: _Optional[str] = ..., run_id: _Optional[str] = ..., group_id: _Optional[str] = ..., task_id: _Optional[str] = ..., split: _Optional[str] = ..., attempt: _Optional[int] = ..., start_ns: _Optional[int] = ..., end_ns: _Optional[int] = ..., outcome: _Optional[str] = ..., root_agent: _Optional[str] = ..., calls: _Optional[int] = ..., tool_calls: _Optional[int] = ..., rewards: _Optional[int] = ..., complete: bool = ..., revision: _Optional[int] = ...) -> None: ...

class StoredRecord(_message.Message):
    __slots__ = ("producer", "seq", "record")
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    producer: bytes
    seq: int
    record: bytes
    def __init__(self, producer: _Optional[bytes] = ..., seq: _Optional[int] = ..., record: _Optional[bytes] = ...) -> None: ...

class RolloutRecords(_message.Message):
    __slots__ = ("summary", "records", "episode")
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    EPISODE_FIELD_NUMBER: _ClassVar[int]
    summary: RolloutSummary
    records: _containers.RepeatedCompositeFieldContainer[StoredRecord]
    episode: bytes
    def __init__(self, summary: _Optional[_Union[RolloutSummary, _Mapping]] = ..., records: _Optional[_Iterable[_Union[StoredRecord, _Mapping]]] = ..., episode: _Optional[bytes] = ...) -> None: ...

class StatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Stats(_message.Message):
    __slots__ = ("counters", "store", "schema_version")
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    counters: _containers.ScalarMap[str, int]
    store: str
    schema_version: int
    def __init__(self, counters: _Optional[_Mapping[str, int]] = ..., store: _Optional[str] = ..., schema_version: _Optional[int] = ...) -> None: ...
