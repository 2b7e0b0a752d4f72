"""The writing end of the spool.

1. Nothing is on disk before the first record, and everything that was written when `append` returns.
2. Files are private, locked while they may still be written, and never seen without header and lock.
3. What cannot be written leaves no trace, is counted, and takes no number.
4. Threads, finalisers and signal handlers may append at any moment.
"""

from __future__ import annotations

import gc
import os
import stat
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from lightning_sdk.client.segments import MAX_RECORD_BYTES, SegmentReader, claim, list_segments
from lightning_sdk.client.spool import SpoolWriter
from lightning_sdk.errors import SpoolError

PRODUCER = b"\xab" * 16


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "home" / "spool"


def contents(spool: Path) -> list[tuple[int, bytes]]:
    """All records of one producer, with their numbers."""
    frames = []
    for path in list_segments(spool):
        reader = SegmentReader(path)
        while found := reader.read():
            frames += [(frame.seq, frame.record) for frame in found]
        assert reader.damage is None
        reader.close()
    return frames


def test_nothing_is_made_before_the_first_record(spool: Path) -> None:
    writer = SpoolWriter(spool, PRODUCER)
    assert not spool.exists()
    writer.append(b"first")
    assert contents(spool) == [(1, b"first")]
    assert writer.written == 1
    writer.close()


def test_directories_and_files_are_for_their_owner_alone(spool: Path) -> None:
    writer = SpoolWriter(spool, PRODUCER)
    writer.append(b"x")
    (path,) = list_segments(spool)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(spool.stat().st_mode) == 0o700
    assert stat.S_IMODE(spool.parent.stat().st_mode) == 0o700
    assert list(spool.iterdir()) == [path]
    writer.close()


def test_the_header_says_who_wrote_it_and_where_it_is_owed(spool: Path) -> None:
    writer = SpoolWriter(spool, PRODUCER, destination="grpc://127.0.0.1:1", spool_only=True)
    writer.append(b"x")
    reader = SegmentReader(list_segments(spool)[0])
    reader.close()
    header = reader.header
    assert (header.producer, header.first_seq, header.pid) == (PRODUCER, 1, os.getpid())
    assert (header.destination, header.spool_only) == ("grpc://127.0.0.1:1", True)
    assert header.created_ns > 0
    assert header.host
    assert header.version
    writer.close()


def test_a_segment_is_locked_while_it_may_be_written_and_free_afterwards(spool: Path) -> None:
    writer = SpoolWriter(spool, PRODUCER)
    writer.append(b"x")
    (path,) = list_segments(spool)
    with claim(path) as ours:
        assert not ours
    writer.close()
    with claim(path) as ours:
        assert ours


def test_a_full_segment_is_left_for_a_new_one_and_numbers_go_on(spool: Path) -> None:
    writer = SpoolWriter(spool, PRODUCER, segment_bytes=1000)
    records = [b"%04d" % number * 50 for number in range(20)]
    for record in records:
        writer.append(record)
    paths = list_segments(spool)
    assert len(paths) > 3
    assert [segment.path for segment in writer.segments()] == paths
    assert all(path.stat().st_size <= 1000 for path in paths)
    assert contents(spool) == list(enumerate(records, 1))
    *full, last = paths
    for path in full:
        with claim(path) as ours:
            assert ours
    with claim(last) as ours:
        assert not ours
    writer.close()


def test_a_record_larger_than_a_segment_gets_one_of_its_own(spool: Path) -> None:
    writer = SpoolWriter(spool, PRODUCER, segment_bytes=1000)
    for record in (b"a", b"b" * 5000, b"c"):
        writer.append(record)
    assert contents(spool) == [(1, b"a"), (2, b"b" * 5000), (3, b"c")]
    writer.close()


def test_what_may_not_be_written_is_refused_and_counted(spool: Path) -> None:
    writer = SpoolWriter(spool, PRODUCER)
    for record in (b"", bytes(MAX_RECORD_BYTES + 1)):
        with pytest.raises(SpoolError, match="expected"):
            writer.append(record)
    writer.append(b"fine")
    assert (writer.written, writer.lost) == (1, 2)
    assert contents(spool) == [(1, b"fine")]
    writer.close()
    with pytest.raises(SpoolError, match="closed"):
        writer.append(b"late")
    assert writer.lost == 3


def test_a_place_that_cannot_be_written_is_a_spool_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    writer = SpoolWriter(tmp_path / "file" / "spool", PRODUCER)
    with pytest.raises(SpoolError, match="file/spool"):
        writer.append(b"x")
    assert (writer.written, writer.lost) == (0, 1)


def test_after_its_directory_was_deleted_it_begins_a_new_segment(spool: Path) -> None:
    writer = SpoolWriter(spool, PRODUCER)
    writer.append(b"gone")
    (path,) = list_segments(spool)
    path.unlink()
    spool.rmdir()
    writer.append(b"here")
    assert contents(spool) == [(2, b"here")]
    writer.close()


def test_threads_append_without_gaps_and_without_tearing_each_other(spool: Path) -> None:
    writer = SpoolWriter(spool, PRODUCER, segment_bytes=20_000)

    def append_many(name: bytes) -> None:
        for number in range(300):
            writer.append(b"%s %d" % (name, number))

    threads = [threading.Thread(target=append_many, args=(b"t%d" % index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = contents(spool)
    assert [seq for seq, _ in found] == list(range(1, 1201))
    for index in range(4):
        mine = [record for _, record in found if record.startswith(b"t%d " % index)]
        assert mine == [b"t%d %d" % (index, number) for number in range(300)]
    writer.close()


def test_a_finaliser_that_appends_in_the_middle_of_an_append_neither_hangs_nor_is_lost(spool: Path) -> None:
    writer = SpoolWriter(spool, PRODUCER, segment_bytes=400)
    appended = 0

    class Cyclic:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            nonlocal appended
            appended += 1
            writer.append(b"from a finaliser")

    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(100):
            Cyclic()
            writer.append(b"from the program")
    finally:
        gc.set_threshold(*threshold)
        gc.collect()
    found = contents(spool)
    assert [seq for seq, _ in found] == list(range(1, len(found) + 1))
    assert len(found) == writer.written == 100 + appended
    assert appended == 100
    writer.close()


def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_when_the_disk_is_full_the_record_is_lost_and_counted_and_the_file_stays_whole(spool: Path) -> None:
    # RLIMIT_FSIZE cuts a write short and then fails it, as a full disk does.
    done = run(
        """
        import resource, signal, sys
        from pathlib import Path
        from lightning_sdk.client.spool import SpoolWriter
        from lightning_sdk.errors import SpoolError

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        writer = SpoolWriter(Path(sys.argv[1]), b"p" * 16)
        writer.append(b"before")
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        try:
            writer.append(b"x" * 5000)
        except SpoolError as error:
            print(error)
        writer.append(b"small enough")
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        writer.append(b"y" * 5000)
        print(writer.written, writer.lost)
        """,
        spool,
    )
    assert done.returncode == 0, done.stderr
    message, counts = done.stdout.splitlines()
    assert "cannot be written to the spool" in message
    assert "File too large" in message
    assert counts == "3 1"
    assert contents(spool) == [(1, b"before"), (2, b"small enough"), (3, b"y" * 5000)]


def test_an_interrupt_during_a_write_leaves_the_numbers_right(spool: Path) -> None:
    # The signal arrives somewhere in or around the system call, a few hundred times.
    done = run(
        """
        import signal, sys
        from pathlib import Path
        from lightning_sdk.client.spool import SpoolWriter

        class Interrupt(BaseException):
            pass

        def interrupt(*_):
            raise Interrupt

        writer = SpoolWriter(Path(sys.argv[1]), b"p" * 16, segment_bytes=3000)
        signal.signal(signal.SIGALRM, interrupt)
        returned = 0
        interrupts = 0
        while interrupts < 300:
            try:
                # And again: Python itself swallows one that arrives in a callback of its own.
                signal.setitimer(signal.ITIMER_REAL, 0.0004, 0.05)
                while True:
                    writer.append(b"%d" % returned * 30)
                    returned += 1
            except Interrupt:
                interrupts += 1
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        writer.append(b"end")
        writer.close()
        print(writer.written, returned + 1)
        """,
        spool,
    )
    assert done.returncode == 0, done.stderr
    written, returned = map(int, done.stdout.split())
    found = contents(spool)
    assert [seq for seq, _ in found] == list(range(1, written + 1))
    assert written >= returned, "what append returned for is there"
    assert found[-1] == (written, b"end")
