"""A living writer that makes segments as fast as it can, beside a sender that adopts them.

One look at a directory may miss a file that is made meanwhile and yet show a later one: what lies between must
never pass for lost.
"""

from __future__ import annotations

import select
import subprocess
import sys
import textwrap
from pathlib import Path

from lightning_sdk.client.producer import Producer
from lightning_sdk.client.segments import list_segments
from support.ingest_server import IngestServer
from support.spool_records import numbered, numbers_of
from support.waiting import wait_until

# One record a segment, so that each is followed by another file.
WRITER = """
    import sys
    from pathlib import Path
    from lightning_sdk.client.spool import SpoolWriter
    from lightning_sdk.records import Note, Record

    spool, destination, producer = Path(sys.argv[1]), sys.argv[2], bytes.fromhex(sys.argv[3])
    writer = SpoolWriter(spool, producer, destination=destination, spool_only=True, segment_bytes=300)
    sys.stdin.readline()
    for number in range(1, int(sys.argv[4]) + 1):
        writer.append(Record(order=number, note=Note(values=b"x" * 100)).SerializeToString())
    print("written", flush=True)
    sys.stdin.read()
"""
WRITERS, RECORDS = 2, 800
# So many files beside the segments that one look at the directory takes several system calls.
OTHER_FILES = 3000


def test_no_record_of_a_living_writer_is_told_to_be_lost(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    for index in range(OTHER_FILES):
        (spool / f"{index:032x}-{1:012}.seg.damaged").touch()
    ids = [bytes([index]) * 16 for index in range(WRITERS)]
    with IngestServer() as server:
        writers = [
            subprocess.Popen(
                [
                    *(sys.executable, "-c", textwrap.dedent(WRITER)),
                    *(str(spool), server.destination, producer.hex(), str(RECORDS)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for producer in ids
        ]
        adopter = Producer(spool, destination=server.destination)
        adopter.write(numbered(1))
        assert adopter.flush(20)
        for writer in writers:
            assert writer.stdin is not None
            print(file=writer.stdin, flush=True)
        for writer in writers:
            # At each moment of their work, as the sender does about every second.
            while writer.poll() is None and not _has_written(writer):
                adopter._sender._backlog.refresh(now=True)  # type: ignore[union-attr]
        for producer in ids:
            wait_until(lambda producer=producer: len(server.frames.get(producer, {})) == RECORDS, 60)
            assert server.lost(producer) == {}
            assert numbers_of(server.records(producer)) == list(range(1, RECORDS + 1))
        assert server.seen["gaps"] == server.seen["conflicts"] == 0
        for writer in writers:
            writer.communicate(timeout=60)
        wait_until(lambda: len(list_segments(spool)) <= 1)
        assert adopter.counters == {}
        assert adopter.close(20)


def _has_written(writer: subprocess.Popen[str]) -> bool:
    assert writer.stdout is not None
    return bool(select.select([writer.stdout], [], [], 0)[0])
