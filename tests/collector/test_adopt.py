"""Adoption of the spool.

1. A dead owner's segment is in the store before it is deleted; a living owner's is copied and left.
2. A segment that is owed elsewhere is not touched.
3. What is damaged is adopted as far as it can be read, and kept beside; nothing is lost quietly.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from lightning_sdk.collector.adopt import Adopter, AdoptionReport, adopt_spool
from lightning_sdk.collector.store.sqlite import SqliteStore
from lightning_sdk.errors import StoreError
from support.frames import Telling, whole_rollout
from support.full_disk import full_disk
from support.segments import file_frame, living_owner, segment_bytes, write_segment
from support.stores import ALL


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "traces.db")
    yield store
    store.close()


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "spool"


def test_no_spool_is_an_empty_one(spool: Path, store: SqliteStore) -> None:
    assert adopt_spool(spool, store) == AdoptionReport()
    assert not spool.exists()


def test_a_dead_owners_segments_are_adopted_and_deleted(spool: Path, store: SqliteStore) -> None:
    telling = whole_rollout("a")
    write_segment(spool, telling.producer, telling.frames[:4])
    write_segment(spool, telling.producer, telling.frames[4:])
    assert adopt_spool(spool, store) == AdoptionReport(records=9, segments=2)
    assert list(spool.iterdir()) == []
    assert store.high_water(telling.producer) == 9


def test_a_living_owners_segment_is_copied_and_left(spool: Path, store: SqliteStore) -> None:
    telling = whole_rollout("a")
    path = write_segment(spool, telling.producer, telling.frames[:5])
    before = path.read_bytes()
    with living_owner(path) as descriptor:
        assert adopt_spool(spool, store) == AdoptionReport(records=5, living=1)
        assert adopt_spool(spool, store) == AdoptionReport(records=0, living=1)
        assert path.read_bytes() == before
        os.write(descriptor, file_frame(telling.frames[5].record))
        assert adopt_spool(spool, store) == AdoptionReport(records=1, living=1)
    assert adopt_spool(spool, store) == AdoptionReport(records=0, segments=1)
    assert store.high_water(telling.producer) == 6
    assert store.stats().counters["duplicates"] == 0


def test_an_adopter_follows_a_living_owner(spool: Path, store: SqliteStore) -> None:
    telling = whole_rollout("a")
    path = write_segment(spool, telling.producer, telling.frames[:1])
    adopter = Adopter(spool, store)
    with living_owner(path) as descriptor:
        assert adopter.adopt().records == 1
        for frame in telling.frames[1:]:
            half = file_frame(frame.record)
            os.write(descriptor, half[:10])
            assert adopter.adopt() == AdoptionReport(living=1)
            os.write(descriptor, half[10:])
            assert adopter.adopt() == AdoptionReport(records=1, living=1)
    assert adopter.adopt() == AdoptionReport(segments=1)
    adopter.close()
    assert store.high_water(telling.producer) == 9


def test_a_segment_that_is_owed_elsewhere_is_not_touched(spool: Path, store: SqliteStore) -> None:
    telling = whole_rollout("a")
    path = write_segment(spool, telling.producer, telling.frames, destination="grpc://host:1")
    before = path.read_bytes()
    assert adopt_spool(spool, store) == AdoptionReport(waiting={"grpc://host:1": 1})
    assert path.read_bytes() == before
    assert store.stats().counters["records"] == 0
    taken = adopt_spool(spool, store, is_ours=lambda owed_to: owed_to == "grpc://host:1")
    assert taken == AdoptionReport(records=9, segments=1)


def test_a_segment_that_its_living_owner_sends_here_is_left_to_it(spool: Path, store: SqliteStore) -> None:
    telling = whole_rollout("a")
    path = write_segment(spool, telling.producer, telling.frames, destination="grpc://host:1")
    with living_owner(path):
        assert adopt_spool(spool, store, is_ours=lambda _: True) == AdoptionReport(living=1)
    assert adopt_spool(spool, store, is_ours=lambda _: True) == AdoptionReport(records=9, segments=1)


def test_a_last_record_cut_short_is_told(spool: Path, store: SqliteStore) -> None:
    telling = whole_rollout("a")
    path = write_segment(spool, telling.producer, telling.frames)
    path.write_bytes(path.read_bytes()[:-3])
    adoption = adopt_spool(spool, store)
    assert (adoption.records, adoption.segments, adoption.torn) == (8, 1, 1)
    assert path.name in adoption.problems[0]
    assert not path.exists()


def test_a_damaged_record_leaves_a_tombstone_and_the_rest_is_adopted(spool: Path, store: SqliteStore) -> None:
    telling = whole_rollout("a")
    path = write_segment(spool, telling.producer, telling.frames)
    data = path.read_bytes().replace(telling.frames[3].record, b"\0" * len(telling.frames[3].record))
    path.write_bytes(data)
    assert adopt_spool(spool, store).segments == 1
    assert store.high_water(telling.producer) == 9
    counters = store.stats().counters
    assert (counters["records"], counters["tombstones"], counters["lost"]) == (8, 1, 1)
    (summary,) = store.list_rollouts(ALL)
    assert not summary.complete


def test_a_damaged_segment_is_adopted_up_to_the_damage_and_set_aside(spool: Path, store: SqliteStore) -> None:
    telling = whole_rollout("a")
    path = write_segment(spool, telling.producer, telling.frames[:4])
    with path.open("ab") as file:
        file.write(b"\xff" * 1000)
    before = path.read_bytes()
    adoption = adopt_spool(spool, store)
    assert (adoption.records, adoption.segments, adoption.damaged) == (4, 0, 1)
    aside = path.with_name(path.name + ".damaged")
    assert aside.name in adoption.problems[0]
    assert aside.read_bytes() == before
    assert adopt_spool(spool, store) == AdoptionReport()
    # A tombstone stands for what was lost, as where the segment is sent: what follows can be acknowledged.
    assert store.high_water(telling.producer) == 5
    assert store.stats().counters["lost"] == 1


def test_a_damaged_segment_is_set_aside_even_where_an_earlier_one_is_missing(
    spool: Path, store: SqliteStore
) -> None:
    telling = whole_rollout("a")
    path = write_segment(spool, telling.producer, telling.frames[4:])
    with path.open("ab") as file:
        file.write(b"\xff" * 1000)
    adoption = adopt_spool(spool, store)
    assert (adoption.records, adoption.damaged) == (5, 1)
    assert store.high_water(telling.producer) == 0


def test_any_number_of_living_owners_is_followed_with_a_bounded_number_of_open_files(
    spool: Path, store: SqliteStore
) -> None:
    def open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    adopter = Adopter(spool, store)
    with ExitStack() as owners:
        tellings = [whole_rollout(f"r{index}") for index in range(150)]
        for telling in tellings:
            path = write_segment(spool, telling.producer, telling.frames)
            owners.enter_context(living_owner(path))
        before = open_files()
        for records in (150 * 9, 0):
            assert adopter.adopt() == AdoptionReport(records=records, living=150)
            assert open_files() - before <= 64
    assert adopter.adopt() == AdoptionReport(segments=150)
    adopter.close()


@pytest.mark.parametrize(
    "content", [b"", b"LSPOOL1\n", b"something else entirely", segment_bytes(b"short", [])]
)
def test_what_is_no_segment_is_told_and_left(spool: Path, store: SqliteStore, content: bytes) -> None:
    telling = whole_rollout("a")
    write_segment(spool, telling.producer, telling.frames)
    odd = spool / f"{'0' * 32}-000000000001.seg"
    odd.write_bytes(content)
    adoption = adopt_spool(spool, store)
    assert (adoption.records, adoption.segments, adoption.unreadable) == (9, 1, 1)
    assert str(odd) in adoption.problems[0]
    assert odd.read_bytes() == content


def test_a_store_that_cannot_be_written_leaves_the_segment(spool: Path, store: SqliteStore) -> None:
    telling = Telling()
    telling.record(note={"values": b"y" * 1_000_000})
    path = write_segment(spool, telling.producer, telling.frames)
    with full_disk(store), pytest.raises(StoreError):
        adopt_spool(spool, store)
    assert path.exists()
    assert adopt_spool(spool, store) == AdoptionReport(records=1, segments=1)
