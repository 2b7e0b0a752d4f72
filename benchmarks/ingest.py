"""Durable ingest: records a second from a sender's stream to a committed row, beside its floor.

Two processes: this one sends 2 KB records in batches of 64 over the ingest stream with a window of 16 batches;
a real `lsdk collect` acknowledges after the commit. The floor is the same records in the same batches written
straight into SQLite (WAL, synchronous=FULL, 16 KiB pages) by one thread of one process, without a network or a
check.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

RECORDS = 60_000
RECORD_BYTES = 2048
BATCH = 64
WINDOW = 16


def make_records() -> list[bytes]:
    """Serialized call records of about 2 KB."""
    from lightning_sdk.records import Call, Outcome, Record

    body = os.urandom(RECORD_BYTES // 2).hex().encode()[: RECORD_BYTES - 200]
    return [
        Record(
            order=index,
            start_ns=index,
            end_ns=index + 1,
            rollout_id=f"ro_{index // 20:032x}",
            attempt=1,
            group_id="benchmark",
            call=Call(
                call_id=f"ca_{index:032x}", api="chat.completions", request=body, outcome=Outcome.OUTCOME_OK
            ),
        ).SerializeToString()
        for index in range(1, RECORDS + 1)
    ]


def floor_rate(records: list[bytes], path: Path) -> float:
    """Records a second into bare SQLite."""
    db = sqlite3.connect(path)
    db.executescript("PRAGMA page_size=16384; PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;")
    db.execute("CREATE TABLE records (producer BLOB, seq INTEGER, payload BLOB)")
    db.execute("CREATE UNIQUE INDEX place ON records (producer, seq)")
    producer = os.urandom(16)
    started = time.perf_counter()
    for first in range(0, len(records), BATCH):
        with db:
            rows = [
                (producer, first + offset, data) for offset, data in enumerate(records[first : first + BATCH])
            ]
            db.executemany("INSERT INTO records VALUES (?, ?, ?)", rows)
    return len(records) / (time.perf_counter() - started)


def ingest_rate(records: list[bytes], address: str) -> float:
    """Records a second through a collector, acknowledged after commit."""
    import grpc

    from lightning_sdk._proto.ingest_pb2 import Batch, Frame, IngestRequest, Open
    from lightning_sdk._proto.ingest_pb2_grpc import IngestStub
    from lightning_sdk.records import checksum

    producer = os.urandom(16)
    room = threading.Semaphore(WINDOW)

    def requests() -> Iterator[IngestRequest]:
        yield IngestRequest(open=Open(producer=producer))
        for first in range(0, len(records), BATCH):
            frames = [
                Frame(seq=first + offset + 1, checksum=checksum(data), record=data)
                for offset, data in enumerate(records[first : first + BATCH])
            ]
            room.acquire()
            yield IngestRequest(batch=Batch(producer=producer, frames=frames))

    with grpc.insecure_channel(address) as channel:
        started = time.perf_counter()
        answers = IngestStub(channel).Stream(requests())
        for answer in answers:
            if answer.ack.committed_through:
                room.release()
            if answer.ack.committed_through == len(records):
                break
        elapsed = time.perf_counter() - started
        answers.cancel()
    return len(records) / elapsed


def main() -> None:
    """Measure and print."""
    records = make_records()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder, "home")
        command = [sys.executable, "-m", "lightning_sdk", "collect", "--port", "0"]
        with subprocess.Popen(command, env={**os.environ, "LIGHTNING_HOME": str(home)}) as collector:
            address = _wait_for_address(home)
            floor = floor_rate(records, Path(folder, "floor.db"))
            ours = ingest_rate(records, address)
            collector.terminate()
    print(f"bare SQLite, batches of {BATCH}        {floor:10,.0f} records/s")
    print(f"lsdk collect, batches of {BATCH}       {ours:10,.0f} records/s")
    print(f"ours / floor                    {ours / floor:10.2f}")


def _wait_for_address(home: Path) -> str:
    import json

    found = home / "collector.json"
    while not found.exists():
        time.sleep(0.05)
    address: str = json.loads(found.read_text())["address"]
    return address.removeprefix("grpc://")


if __name__ == "__main__":
    main()
