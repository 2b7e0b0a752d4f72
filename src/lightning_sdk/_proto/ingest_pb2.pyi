from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class IngestRequest(_message.Message):
    __slots__ = ("open", "batch")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    open: Open
    batch: Batch
    def __init__(self, open: _Optional[_Union[Open, _Mapping]] = ..., batch: _Optional[_Union[Batch, _Mapping]] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("producer",)
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    producer: bytes
    def __init__(self, producer: _Optional[bytes] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("producer", "frames")
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    producer: bytes
    frames: _containers.RepeatedCompositeFieldContainer[Frame]
    def __init__(self, producer: _Optional[bytes] = ..., frames: _Optional[_Iterable[_Union[Frame, _Mapping]]] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("seq", "checksum", "record", "lost_reason")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    LOST_REASON_FIELD_NUMBER: _ClassVar[int]
    seq: int
    checksum: int
    record: bytes
    lost_reason: str
    def __init__(self, seq: _Optional[int] = ..., checksum: _Optional[int] = ..., record: _Optional[bytes] = ..., lost_reason: _Optional[str] = ...) -> None: ...

class IngestResponse(_message.Message):
    __slots__ = ("ack",)
    ACK_FIELD_NUMBER: _ClassVar[int]
    ack: Ack
    def __init__(self, ack: _Optional[_Union[Ack, _Mapping]] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("producer", "committed_through", "refusals")
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_THROUGH_FIELD_NUMBER: _ClassVar[int]
    REFUSALS_FIELD_NUMBER: _ClassVar[int]
    producer: bytes
    committed_through: int
    refusals: _containers.RepeatedCompositeFieldContainer[Refusal]
    def __init__(self, producer: _Optional[bytes] = ..., committed_through: _Optional[int] = ..., refusals: _Optional[_Iterable[_Union[Refusal, _Mapping]]] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("seq", "reason")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    seq: int
    reason: str
    def __init__(self, seq: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...
