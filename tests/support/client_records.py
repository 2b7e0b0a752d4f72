"""What the client recorded, as tests look at it, and model calls without a model."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lightning_sdk.client.recorder import CallRecording, ProcessRecorder
from lightning_sdk.client.segments import SegmentReader, list_segments
from lightning_sdk.records import Record, SourcedRecord, parse_record

URL = "http://127.0.0.1:9/v1/chat/completions"


def start_call(*, api: str = "chat.completions", url: str = URL) -> CallRecording | None:
    """What an integration does when a call starts."""
    return ProcessRecorder().start_call(integration="test", api=api, url=url, streamed=False)


def make_call(*, api: str = "chat.completions", response_id: str = "chatcmpl-1") -> str | None:
    """A whole call that succeeds at once; its id, or None where nothing records."""
    call = start_call(api=api)
    if call is None:
        return None
    call.sent(b'{"model":"m","messages":[{"role":"user","content":"hi"}]}')
    call.answered(200, {})
    message = b'{"role":"assistant","content":"hello"}'
    call.received(
        b'{"id":"%s","choices":[{"index":0,"message":%s,"finish_reason":"stop"}]}'
        % (response_id.encode(), message)
    )
    call.finish("ok")
    return call.call_id


def read_spool(directory: Path) -> list[SourcedRecord]:
    """Every record in the segments of a spool."""
    found = []
    for path in list_segments(directory):
        reader = SegmentReader(path)
        while frames := reader.read():
            found += [
                SourcedRecord(reader.header.producer, frame.seq, parse_record(frame.record))
                for frame in frames
            ]
        assert reader.damage is None
        reader.close()
    return found


def bodies(records: Iterable[SourcedRecord]) -> list[str]:
    """The kinds of the records, in order of writing."""
    return [str(sourced.record.WhichOneof("body")) for sourced in records]


def of_kind(records: Iterable[SourcedRecord], kind: str) -> list[Record]:
    """The records of one kind, in order of writing."""
    return [sourced.record for sourced in records if sourced.record.WhichOneof("body") == kind]


def body(record: Record) -> Any:
    """The body of a record."""
    return getattr(record, str(record.WhichOneof("body")))


def run_program(code: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program of its own, with its state in `.lightning` of `cwd`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LIGHTNING_HOME")}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=cwd,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
