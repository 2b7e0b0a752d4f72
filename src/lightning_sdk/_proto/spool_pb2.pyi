from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class SegmentHeader(_message.Message):
    __slots__ = ("producer", "first_seq", "destination", "created_ns", "pid", "host", "version", "spool_only")
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQ_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    CREATED_NS_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SPOOL_ONLY_FIELD_NUMBER: _ClassVar[int]
    producer: bytes
    first_seq: int
    destination: str
    created_ns: int
    pid: int
    host: str
    version: str
    spool_only: bool
    def __init__(self, producer: _Optional[bytes] = ..., first_seq: _Optional[int] = ..., destination: _Optional[str] = ..., created_ns: _Optional[int] = ..., pid: _Optional[int] = ..., host: _Optional[str] = ..., version: _Optional[str] = ..., spool_only: bool = ...) -> None: ...
