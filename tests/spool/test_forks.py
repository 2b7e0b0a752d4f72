"""A process that forks: what its children write, and what becomes of gRPC.

1. A forked child is a producer of its own, uses no gRPC if its parent had it, and its records arrive.
2. A lock of the parent's is not the child's, and no lock that another thread held stops the child.
3. gRPC is at rest while a process forks, so that parent and child may use it for themselves.

The parents are processes of their own: in this one the collector's gRPC is at work.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_sdk.client.segments import claim, list_segments
from support.ingest_server import IngestServer
from support.spool_records import numbers_of
from support.waiting import wait_until


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "spool"


@pytest.fixture
def server() -> Iterator[IngestServer]:
    with IngestServer() as server:
        yield server


# What the programs below begin with. `fork(child)` forks and has the child do this and nothing else;
# `ended_well(*pids)` waits for children and fails if one of them did.
PROLOGUE = """
import faulthandler, os, sys, traceback
from pathlib import Path
from lightning_sdk.client.producer import Producer
from lightning_sdk.records import Note, Record

spool, destination = Path(sys.argv[1]), sys.argv[2]

def write(producer, numbers):
    for number in numbers:
        producer.write(Record(order=number, note=Note(values=b"x" * 100)))

def fork(child):
    pid = os.fork()
    if pid == 0:
        status = 1
        faulthandler.dump_traceback_later(50, exit=True)
        try:
            child()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return pid

def ended_well(*pids):
    statuses = [os.waitpid(pid, 0)[1] for pid in pids]
    assert statuses == [0] * len(pids), statuses
"""


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    code = PROLOGUE + textwrap.dedent(program)
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(program: str, *arguments: object, at_rest: bool = False) -> list[str]:
    """What it prints, in words. `at_rest`: no fork may meet gRPC at work, which it says on stderr."""
    with start(program, *arguments) as process:
        out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    assert not at_rest or "fork()" not in err
    return out.split()


def test_children_forked_while_the_parent_talks_to_the_collector_only_spool_and_their_records_arrive(
    spool: Path, server: IngestServer
) -> None:
    program = """
        parent = Producer(spool, destination=destination)
        write(parent, range(1, 11))
        assert parent.flush(20)
        parent_id = parent.id

        def child():
            assert parent.id != parent_id
            assert (parent.written, parent.tick()) == (0, 1)
            write(parent, range(1, 51))
            assert not parent.flush(10), "nobody here can know, and at once"
            assert not parent.close()
            os.write(1, parent.id.hex().encode() + b" ")

        pids = [fork(child) for _ in range(5)]
        write(parent, range(11, 111))
        ended_well(*pids)
        assert parent.close(20)
        print(parent_id.hex())
    """
    *children, parent = map(bytes.fromhex, run(program, spool, server.destination))
    assert set(server.frames) == {parent, *children}
    assert len(server.frames) == 6
    for child in children:
        assert numbers_of(server.records(child)) == list(range(1, 51))
    assert numbers_of(server.records(parent)) == list(range(1, 111))


def test_the_records_of_a_living_child_arrive_while_it_runs_and_its_segment_stays(
    spool: Path, server: IngestServer
) -> None:
    program = """
        import time
        parent = Producer(spool, destination=destination)
        write(parent, [1])
        assert parent.flush(20)

        def child():
            write(parent, range(1, 6))
            os.write(1, parent.id.hex().encode() + b"\\n")
            sys.stdin.read()

        ended_well(fork(child))
        while len(list(spool.glob("*.seg"))) > 1:
            time.sleep(0.05)
        assert parent.close(20)
    """
    with start(program, spool, server.destination) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        child = bytes.fromhex(process.stdout.readline())
        assert server.wait_until(lambda: len(server.frames.get(child, {})) == 5)
        assert [path.name for path in list_segments(spool) if path.name.startswith(child.hex())]
        process.stdin.close()
        assert process.wait(60) == 0


def test_a_parent_that_writes_nothing_sends_for_its_children(spool: Path, server: IngestServer) -> None:
    program = """
        import grpc
        parent = Producer(spool, destination=destination)
        ended_well(fork(lambda: write(parent, range(1, 6))))
        sys.stdin.read()
        parent.close(20)
    """
    with start(program, spool, server.destination) as process:
        assert server.wait_until(lambda: server.count() == 5)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0


def test_a_child_forked_before_grpc_was_loaded_sends_for_itself(spool: Path, server: IngestServer) -> None:
    program = """
        producer = Producer(spool, destination=destination)
        assert "grpc" not in sys.modules

        def work():
            write(producer, range(1, 11))
            assert producer.close(20)

        pid = fork(work)
        work()
        ended_well(pid)
    """
    run(program, spool, server.destination)
    assert [numbers_of(server.records(producer)) for producer in server.frames] == [list(range(1, 11))] * 2


def test_a_child_of_a_parent_that_has_recorded_nothing_only_spools_says_so_and_is_sent_for_later(
    spool: Path, server: IngestServer
) -> None:
    program = """
        import logging
        import grpc
        import lightning_sdk  # no more than that before the fork
        logging.basicConfig(stream=sys.stdout)

        def record(numbers):
            producer = Producer(spool, destination=destination)
            write(producer, numbers)
            return producer

        def child():
            assert not record(range(1, 11)).flush(20)

        ended_well(fork(child))
        assert record(range(1, 6)).close(20)
    """
    said = " ".join(run(program, spool, server.destination))
    assert said.count("it does not send: its records wait in") == 1
    assert sorted(len(frames) for frames in server.frames.values()) == [5, 10]


def test_the_lock_of_a_parent_dies_with_the_parent_though_its_child_lives(spool: Path) -> None:
    program = """
        producer = Producer(spool)
        write(producer, [1])
        fork(sys.stdin.read)
        os._exit(0)
    """
    with start(program, spool, "") as process:
        process.wait(60)
        (path,) = list_segments(spool)

        def is_free() -> bool:
            with claim(path) as ours:
                return ours

        wait_until(is_free)  # the child lives, and has let go of the segment as its first deed


def test_a_fork_in_the_middle_of_writing_threads_leaves_the_child_able_to_write(
    spool: Path, server: IngestServer
) -> None:
    program = """
        import threading
        parent = Producer(spool, destination=destination, segment_bytes=5000)
        parent_id = parent.id
        stop = threading.Event()

        def hammer():
            while not stop.is_set():
                write(parent, [1])

        threads = [threading.Thread(target=hammer) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            ended_well(*[fork(lambda: write(parent, range(1, 101))) for _ in range(10)])
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        print(parent_id.hex(), parent.written)
        assert parent.close(60)
    """
    parent, written = run(program, spool, server.destination)
    own = bytes.fromhex(parent)
    assert len(server.records(own)) == int(written)
    assert sorted(len(frames) for producer, frames in server.frames.items() if producer != own) == [100] * 10
    assert server.seen["conflicts"] == server.seen["gaps"] == 0


def test_the_records_of_multiprocessing_workers_arrive(spool: Path, server: IngestServer) -> None:
    program = """
        import multiprocessing
        parent = Producer(spool, destination=destination)
        write(parent, [1])
        assert parent.flush(20)
        context = multiprocessing.get_context("fork")
        workers = [context.Process(target=write, args=(parent, range(1, 21))) for _ in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert [worker.exitcode for worker in workers] == [0, 0, 0]
        assert parent.close(20)
    """
    run(program, spool, server.destination)
    assert sorted(len(frames) for frames in server.frames.values()) == [1, 20, 20, 20]


def test_parent_and_children_may_use_grpc_for_themselves_after_a_fork(
    spool: Path, server: IngestServer
) -> None:
    """Also where only we have loaded it. Not while a thread writes: gRPC itself may hang in the child then."""
    program = """
        parent = Producer(spool, destination=destination)
        write(parent, [1])
        assert parent.flush(20)

        def call():
            import grpc

            with grpc.insecure_channel(destination.removeprefix("grpc://")) as channel:
                try:
                    channel.unary_unary("/some/Method")(b"", timeout=40)
                except grpc.RpcError as error:
                    assert error.code() is grpc.StatusCode.UNIMPLEMENTED, error

        for _ in range(5):
            ended_well(fork(call))
        call()
        assert parent.close(20)
    """
    run(program, spool, server.destination)


def test_a_fork_meets_a_collector_that_does_not_answer(spool: Path, server: IngestServer) -> None:
    server.faults.running.clear()
    program = """
        parent = Producer(spool, destination=destination)
        write(parent, [1])
        print("written", flush=True)
        sys.stdin.readline()
        ended_well(fork(lambda: write(parent, range(1, 6))))
        sys.stdin.readline()
        assert parent.close(20)
    """
    with start(program, spool, server.destination) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        wait_until(lambda: server.seen["connections"])
        print(file=process.stdin, flush=True)
        wait_until(lambda: server.seen["connections"] == 2)  # the fork is over
        server.faults.running.set()
        print(file=process.stdin, flush=True)
        assert process.wait(60) == 0
    assert sorted(len(frames) for frames in server.frames.values()) == [1, 5]


def test_threads_that_fork_at_the_same_time_do_not_hold_up_each_other(
    spool: Path, server: IngestServer
) -> None:
    program = """
        import threading
        parent = Producer(spool, destination=destination)
        write(parent, [1])
        assert parent.flush(20)

        def forks():
            for _ in range(5):
                ended_well(fork(lambda: write(parent, [1])))

        threads = [threading.Thread(target=forks) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert parent.close(20)
    """
    run(program, spool, server.destination)
    assert len(server.frames) == 21
