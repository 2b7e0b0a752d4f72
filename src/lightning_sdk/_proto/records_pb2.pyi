from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_UNSPECIFIED: _ClassVar[Outcome]
    OUTCOME_OK: _ClassVar[Outcome]
    OUTCOME_ERROR: _ClassVar[Outcome]
    OUTCOME_CANCELLED: _ClassVar[Outcome]
    OUTCOME_CLOSED_EARLY: _ClassVar[Outcome]
    OUTCOME_ABANDONED: _ClassVar[Outcome]
OUTCOME_UNSPECIFIED: Outcome
OUTCOME_OK: Outcome
OUTCOME_ERROR: Outcome
OUTCOME_CANCELLED: Outcome
OUTCOME_CLOSED_EARLY: Outcome
OUTCOME_ABANDONED: Outcome

class Error(_message.Message):
    __slots__ = ("type", "message")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    type: str
    message: str
    def __init__(self, type: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class Record(_message.Message):
    __slots__ = ("order", "start_ns", "end_ns", "rollout_id", "attempt", "group_id", "scope_id", "trace_id", "span_id", "rollout_start", "rollout_end", "join", "leave", "scope_start", "scope_end", "call", "tokens", "tool_call", "reward", "note", "otel_span", "counters")
    ORDER_FIELD_NUMBER: _ClassVar[int]
    START_NS_FIELD_NUMBER: _ClassVar[int]
    END_NS_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    SCOPE_ID_FIELD_NUMBER: _ClassVar[int]
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    SPAN_ID_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_START_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_END_FIELD_NUMBER: _ClassVar[int]
    JOIN_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    SCOPE_START_FIELD_NUMBER: _ClassVar[int]
    SCOPE_END_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALL_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    OTEL_SPAN_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    order: int
    start_ns: int
    end_ns: int
    rollout_id: str
    attempt: int
    group_id: str
    scope_id: str
    trace_id: bytes
    span_id: bytes
    rollout_start: RolloutStart
    rollout_end: RolloutEnd
    join: Join
    leave: Leave
    scope_start: ScopeStart
    scope_end: ScopeEnd
    call: Call
    tokens: Tokens
    tool_call: ToolCall
    reward: Reward
    note: Note
    otel_span: OtelSpan
    counters: Counters
    def __init__(self, order: _Optional[int] = ..., start_ns: _Optional[int] = ..., end_ns: _Optional[int] = ..., rollout_id: _Optional[str] = ..., attempt: _Optional[int] = ..., group_id: _Optional[str] = ..., scope_id: _Optional[str] = ..., trace_id: _Optional[bytes] = ..., span_id: _Optional[bytes] = ..., rollout_start: _Optional[_Union[RolloutStart, _Mapping]] = ..., rollout_end: _Optional[_Union[RolloutEnd, _Mapping]] = ..., join: _Optional[_Union[Join, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ..., scope_start: _Optional[_Union[ScopeStart, _Mapping]] = ..., scope_end: _Optional[_Union[ScopeEnd, _Mapping]] = ..., call: _Optional[_Union[Call, _Mapping]] = ..., tokens: _Optional[_Union[Tokens, _Mapping]] = ..., tool_call: _Optional[_Union[ToolCall, _Mapping]] = ..., reward: _Optional[_Union[Reward, _Mapping]] = ..., note: _Optional[_Union[Note, _Mapping]] = ..., otel_span: _Optional[_Union[OtelSpan, _Mapping]] = ..., counters: _Optional[_Union[Counters, _Mapping]] = ...) -> None: ...

class RolloutStart(_message.Message):
    __slots__ = ("project", "run_id", "task_id", "split", "metadata")
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    project: str
    run_id: str
    task_id: str
    split: str
    metadata: bytes
    def __init__(self, project: _Optional[str] = ..., run_id: _Optional[str] = ..., task_id: _Optional[str] = ..., split: _Optional[str] = ..., metadata: _Optional[bytes] = ...) -> None: ...

class RolloutEnd(_message.Message):
    __slots__ = ("outcome", "error", "truncation_reason")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TRUNCATION_REASON_FIELD_NUMBER: _ClassVar[int]
    outcome: Outcome
    error: Error
    truncation_reason: str
    def __init__(self, outcome: _Optional[_Union[Outcome, str]] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., truncation_reason: _Optional[str] = ...) -> None: ...

class Join(_message.Message):
    __slots__ = ("parent_producer", "parent_order", "pid", "host")
    PARENT_PRODUCER_FIELD_NUMBER: _ClassVar[int]
    PARENT_ORDER_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    parent_producer: bytes
    parent_order: int
    pid: int
    host: str
    def __init__(self, parent_producer: _Optional[bytes] = ..., parent_order: _Optional[int] = ..., pid: _Optional[int] = ..., host: _Optional[str] = ...) -> None: ...

class Leave(_message.Message):
    __slots__ = ("count",)
    COUNT_FIELD_NUMBER: _ClassVar[int]
    count: int
    def __init__(self, count: _Optional[int] = ...) -> None: ...

class ScopeStart(_message.Message):
    __slots__ = ("agent", "parent_scope_id")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    PARENT_SCOPE_ID_FIELD_NUMBER: _ClassVar[int]
    agent: str
    parent_scope_id: str
    def __init__(self, agent: _Optional[str] = ..., parent_scope_id: _Optional[str] = ...) -> None: ...

class ScopeEnd(_message.Message):
    __slots__ = ("outcome", "error")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    outcome: Outcome
    error: Error
    def __init__(self, outcome: _Optional[_Union[Outcome, str]] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class Call(_message.Message):
    __slots__ = ("call_id", "endpoint_call_id", "integration", "api", "agent", "url", "request", "response", "events", "streamed", "outcome", "error", "attempts", "status", "redactions")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_CALL_ID_FIELD_NUMBER: _ClassVar[int]
    INTEGRATION_FIELD_NUMBER: _ClassVar[int]
    API_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    STREAMED_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REDACTIONS_FIELD_NUMBER: _ClassVar[int]
    call_id: str
    endpoint_call_id: str
    integration: str
    api: str
    agent: str
    url: str
    request: bytes
    response: bytes
    events: _containers.RepeatedScalarFieldContainer[bytes]
    streamed: bool
    outcome: Outcome
    error: Error
    attempts: int
    status: int
    redactions: int
    def __init__(self, call_id: _Optional[str] = ..., endpoint_call_id: _Optional[str] = ..., integration: _Optional[str] = ..., api: _Optional[str] = ..., agent: _Optional[str] = ..., url: _Optional[str] = ..., request: _Optional[bytes] = ..., response: _Optional[bytes] = ..., events: _Optional[_Iterable[bytes]] = ..., streamed: bool = ..., outcome: _Optional[_Union[Outcome, str]] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., attempts: _Optional[int] = ..., status: _Optional[int] = ..., redactions: _Optional[int] = ...) -> None: ...

class Tokens(_message.Message):
    __slots__ = ("call_id", "response_id", "policy", "policy_version", "policy_version_end", "prompt_token_ids", "choices", "sampling_requested", "sampling_effective", "logprobs_mode")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_END_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_REQUESTED_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_EFFECTIVE_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_MODE_FIELD_NUMBER: _ClassVar[int]
    call_id: str
    response_id: str
    policy: str
    policy_version: int
    policy_version_end: int
    prompt_token_ids: bytes
    choices: _containers.RepeatedCompositeFieldContainer[ChoiceTokens]
    sampling_requested: bytes
    sampling_effective: bytes
    logprobs_mode: str
    def __init__(self, call_id: _Optional[str] = ..., response_id: _Optional[str] = ..., policy: _Optional[str] = ..., policy_version: _Optional[int] = ..., policy_version_end: _Optional[int] = ..., prompt_token_ids: _Optional[bytes] = ..., choices: _Optional[_Iterable[_Union[ChoiceTokens, _Mapping]]] = ..., sampling_requested: _Optional[bytes] = ..., sampling_effective: _Optional[bytes] = ..., logprobs_mode: _Optional[str] = ...) -> None: ...

class ChoiceTokens(_message.Message):
    __slots__ = ("index", "token_ids", "logprobs", "finish_reason")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    index: int
    token_ids: bytes
    logprobs: bytes
    finish_reason: str
    def __init__(self, index: _Optional[int] = ..., token_ids: _Optional[bytes] = ..., logprobs: _Optional[bytes] = ..., finish_reason: _Optional[str] = ...) -> None: ...

class ToolCall(_message.Message):
    __slots__ = ("tool_call_id", "name", "agent", "arguments", "result", "outcome", "error")
    TOOL_CALL_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    tool_call_id: str
    name: str
    agent: str
    arguments: bytes
    result: bytes
    outcome: Outcome
    error: Error
    def __init__(self, tool_call_id: _Optional[str] = ..., name: _Optional[str] = ..., agent: _Optional[str] = ..., arguments: _Optional[bytes] = ..., result: _Optional[bytes] = ..., outcome: _Optional[_Union[Outcome, str]] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class Reward(_message.Message):
    __slots__ = ("reward_id", "components", "bound", "call_id", "choice")
    class Bound(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        BOUND_UNSPECIFIED: _ClassVar[Reward.Bound]
        BOUND_CALL: _ClassVar[Reward.Bound]
        BOUND_SCOPE: _ClassVar[Reward.Bound]
        BOUND_CONTEXT: _ClassVar[Reward.Bound]
        BOUND_ROLLOUT: _ClassVar[Reward.Bound]
        BOUND_NONE: _ClassVar[Reward.Bound]
    BOUND_UNSPECIFIED: Reward.Bound
    BOUND_CALL: Reward.Bound
    BOUND_SCOPE: Reward.Bound
    BOUND_CONTEXT: Reward.Bound
    BOUND_ROLLOUT: Reward.Bound
    BOUND_NONE: Reward.Bound
    class Component(_message.Message):
        __slots__ = ("name", "value")
        NAME_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        name: str
        value: float
        def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    REWARD_ID_FIELD_NUMBER: _ClassVar[int]
    COMPONENTS_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    reward_id: str
    components: _containers.RepeatedCompositeFieldContainer[Reward.Component]
    bound: Reward.Bound
    call_id: str
    choice: int
    def __init__(self, reward_id: _Optional[str] = ..., components: _Optional[_Iterable[_Union[Reward.Component, _Mapping]]] = ..., bound: _Optional[_Union[Reward.Bound, str]] = ..., call_id: _Optional[str] = ..., choice: _Optional[int] = ...) -> None: ...

class Note(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: bytes
    def __init__(self, values: _Optional[bytes] = ...) -> None: ...

class OtelSpan(_message.Message):
    __slots__ = ("resource_spans",)
    RESOURCE_SPANS_FIELD_NUMBER: _ClassVar[int]
    resource_spans: bytes
    def __init__(self, resource_spans: _Optional[bytes] = ...) -> None: ...

class Counters(_message.Message):
    __slots__ = ("values",)
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.ScalarMap[str, int]
    def __init__(self, values: _Optional[_Mapping[str, int]] = ...) -> None: ...
