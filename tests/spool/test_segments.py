"""The spool's file format and its reader.

1. The bytes of a segment are those of docs/architecture.md.
2. A reader takes whole frames with a right checksum, also from a file that still grows.
3. A torn tail costs nothing; a damaged frame in the middle costs one record, which keeps its number.
4. Hostile bytes give a SpoolError or a damage, nothing else, and no more memory than the file has bytes.
5. A segment can be claimed exactly while nobody else holds its lock, and only then is it finished with: what
   was written since, and one tombstone for an end that cannot be read, are committed first.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightning_sdk._proto.spool_pb2 import SegmentHeader
from lightning_sdk.client.segments import (
    MAGIC,
    SegmentReader,
    claim,
    encode_frame,
    finish,
    list_segments,
    remove_claimed,
    segment_name,
)
from lightning_sdk.errors import SpoolError

PRODUCER = bytes(range(16))


def header(first_seq: int = 1, **fields: object) -> bytes:
    return SegmentHeader(producer=PRODUCER, first_seq=first_seq, **fields).SerializeToString()


def segment(directory: Path, *parts: bytes, first_seq: int = 1) -> Path:
    """A segment file with a good header and these raw parts after it."""
    path = directory / segment_name(PRODUCER, first_seq)
    path.write_bytes(MAGIC + encode_frame(header(first_seq)) + b"".join(parts))
    return path


def read_all(path: Path) -> tuple[list[tuple[int, bytes, str]], SegmentReader]:
    reader = SegmentReader(path)
    frames = []
    while found := reader.read(max_bytes=500):
        frames += [(frame.seq, frame.record, frame.lost_reason) for frame in found]
    reader.close()
    return frames, reader


def test_the_bytes_of_a_frame_and_of_a_file_name() -> None:
    # CRC-32 of "123456789" is the published check value 0xCBF43926.
    assert encode_frame(b"123456789") == b"\x09\x00\x00\x00" + b"\x26\x39\xf4\xcb" + b"123456789"
    assert MAGIC == b"LSPOOL1\n"
    assert segment_name(PRODUCER, 42) == "000102030405060708090a0b0c0d0e0f-000000000042.seg"


def test_a_segment_written_by_hand_is_read(tmp_path: Path) -> None:
    path = tmp_path / "by hand.seg"
    # field 1 (bytes, 16 long) and field 2 (varint 7)
    head = b"\x0a\x10" + PRODUCER + b"\x10\x07"
    raw = b"LSPOOL1\n"
    for payload in (head, b"one", b"two"):
        raw += struct.pack("<II", len(payload), zlib.crc32(payload)) + payload
    path.write_bytes(raw)
    reader = SegmentReader(path)
    assert (reader.header.producer, reader.header.first_seq) == (PRODUCER, 7)
    assert [(f.seq, f.record, f.checksum) for f in reader.read()] == [
        (7, b"one", zlib.crc32(b"one")),
        (8, b"two", zlib.crc32(b"two")),
    ]
    assert reader.read() == []
    assert reader.damage is None
    reader.close()


def test_reading_goes_on_where_the_file_has_grown(tmp_path: Path) -> None:
    path = segment(tmp_path)
    reader = SegmentReader(path)
    assert reader.read() == []
    whole = encode_frame(b"late")
    with path.open("ab", buffering=0) as file:
        file.write(whole[:9])
        assert reader.read() == []
        assert reader.damage is not None, "a frame that is not whole yet"
        file.write(whole[9:])
    assert [frame.record for frame in reader.read()] == [b"late"]
    assert reader.damage is None
    reader.close()


def test_a_read_returns_about_as_much_as_was_asked_for_and_at_least_one_record(tmp_path: Path) -> None:
    path = segment(tmp_path, *[encode_frame(b"x" * 1000)] * 10)
    reader = SegmentReader(path)
    assert len(reader.read(max_bytes=1)) == 1
    assert len(reader.read(max_bytes=5000)) == 4
    assert len(reader.read()) == 5
    reader.close()


def test_records_larger_than_the_window_are_read(tmp_path: Path) -> None:
    big = os.urandom(3 << 20)
    frames, reader = read_all(segment(tmp_path, encode_frame(b"a"), encode_frame(big), encode_frame(b"b")))
    assert [record for _, record, _ in frames] == [b"a", big, b"b"]
    assert reader.damage is None


@pytest.mark.parametrize("cut", [1, 7, 8, 9, 15])
def test_a_torn_tail_is_told_and_costs_nothing_before_it(tmp_path: Path, cut: int) -> None:
    frames, reader = read_all(segment(tmp_path, encode_frame(b"whole"), encode_frame(b"sixteen!")[:cut]))
    assert frames == [(1, b"whole", "")]
    assert reader.torn
    assert reader.damage is not None
    assert "after record 1" in reader.damage


def test_a_damaged_frame_in_the_middle_is_one_lost_record_and_the_rest_keeps_its_numbers(
    tmp_path: Path,
) -> None:
    bad = bytearray(encode_frame(b"second"))
    bad[-1] ^= 1
    frames, reader = read_all(segment(tmp_path, encode_frame(b"first"), bytes(bad), encode_frame(b"third")))
    assert [(seq, record) for seq, record, _ in frames] == [(1, b"first"), (2, b""), (3, b"third")]
    assert "wrong checksum" in frames[1][2]
    assert reader.damage is None


def test_two_damaged_frames_in_a_row_are_two_lost_records(tmp_path: Path) -> None:
    bad = encode_frame(b"xx")[:-1] + b"y"
    frames, _ = read_all(segment(tmp_path, bad, bad, encode_frame(b"third")))
    assert [(seq, record, bool(lost)) for seq, record, lost in frames] == [
        (1, b"", True),
        (2, b"", True),
        (3, b"third", False),
    ]


def test_where_the_length_is_damaged_too_the_rest_cannot_be_read(tmp_path: Path) -> None:
    bad = struct.pack("<II", 3, 0) + b"second"  # the length leads into the middle of the payload
    frames, reader = read_all(segment(tmp_path, encode_frame(b"first"), bad, encode_frame(b"third")))
    assert frames == [(1, b"first", "")]
    assert reader.damage is not None
    assert not reader.torn
    assert reader.next_seq == 2


def test_a_damaged_last_frame_is_a_damage_not_a_torn_tail(tmp_path: Path) -> None:
    _, reader = read_all(segment(tmp_path, encode_frame(b"first"), encode_frame(b"last")[:-1] + b"?"))
    assert reader.damage is not None
    assert not reader.torn


def test_a_tail_of_zeros_is_a_damage_not_many_empty_records(tmp_path: Path) -> None:
    frames, reader = read_all(segment(tmp_path, encode_frame(b"first"), bytes(4096)))
    assert [seq for seq, _, _ in frames] == [1]
    assert reader.damage is not None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no spool segment"),
        (b"LSPOOL2\n", "no spool segment"),
        (MAGIC, "damaged header"),
        (MAGIC + b"\xff" * 64, "damaged header"),
        (MAGIC + encode_frame(b"\xff\xff\xff"), "damaged header"),
        (MAGIC + encode_frame(SegmentHeader(producer=b"short", first_seq=1).SerializeToString()), "5 bytes"),
        (MAGIC + encode_frame(header(0)), "first record 0"),
        (MAGIC + encode_frame(header(1 << 63)), "first record"),
        (MAGIC + encode_frame(header(host="h" * 100_000)), "damaged header"),
    ],
)
def test_what_is_no_segment_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.seg"
    path.write_bytes(content)
    with pytest.raises(SpoolError, match=message):
        SegmentReader(path)


def test_what_is_no_plain_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.seg")
    (tmp_path / "folder.seg").mkdir()
    (tmp_path / "link.seg").symlink_to(segment(tmp_path))
    for name in ("pipe.seg", "folder.seg", "link.seg", "missing.seg"):
        with pytest.raises(SpoolError):
            SegmentReader(tmp_path / name)


def test_a_length_far_beyond_the_file_is_not_believed(tmp_path: Path) -> None:
    frames, reader = read_all(segment(tmp_path, struct.pack("<II", 60 << 20, 0) + b"little"))
    assert frames == []
    assert reader.damage is not None


_hypothesis = settings(
    max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


@_hypothesis
@given(tail=st.binary(max_size=200))
def test_any_bytes_after_good_records_leave_those_readable(tmp_path: Path, tail: bytes) -> None:
    frames, _ = read_all(segment(tmp_path, encode_frame(b"one"), encode_frame(b"two"), tail))
    assert [record for _, record, _ in frames[:2]] == [b"one", b"two"]


@_hypothesis
@given(data=st.data())
def test_after_any_damage_every_record_that_is_read_is_true_and_has_its_own_number(
    tmp_path: Path, data: st.DataObject
) -> None:
    records = data.draw(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=8))
    path = segment(tmp_path, *map(encode_frame, records))
    raw = bytearray(path.read_bytes())
    position = data.draw(st.integers(0, len(raw) - 1))
    raw[position] ^= data.draw(st.integers(1, 255))
    path.write_bytes(raw[: data.draw(st.integers(position, len(raw)))])
    try:
        frames, _ = read_all(path)
    except SpoolError:
        return
    assert [seq for seq, _, _ in frames] == list(range(1, len(frames) + 1))
    for seq, record, lost in frames:
        assert lost or record == records[seq - 1]


@_hypothesis
@given(content=st.binary(max_size=300))
def test_arbitrary_bytes_never_raise_anything_but_a_spool_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "hostile.seg"
    for prefix in (b"", MAGIC, MAGIC + encode_frame(header())):
        path.write_bytes(prefix + content)
        try:
            read_all(path)
        except SpoolError:
            pass


def test_segments_are_listed_by_name_and_nothing_else_is(tmp_path: Path) -> None:
    assert list_segments(tmp_path / "missing") == []
    for first_seq in (200, 1, 30):
        segment(tmp_path, first_seq=first_seq)
    (tmp_path / "adopter-1.lock").touch()
    (tmp_path / ".unfinished.seg.new").touch()
    assert [SegmentReader(path).header.first_seq for path in list_segments(tmp_path)] == [1, 30, 200]


def test_a_segment_is_claimed_by_one_at_a_time(tmp_path: Path) -> None:
    path = segment(tmp_path)
    with claim(path) as first, claim(path) as second:
        assert (first, second) == (True, False)
        assert not remove_claimed(path)
    with claim(path) as again:
        assert again
    assert remove_claimed(path)
    assert not path.exists()
    assert remove_claimed(path), "what is deleted already is no reason to wait"
    with claim(path) as gone:
        assert not gone


def finished_reader(path: Path) -> SegmentReader:
    """A reader that has read all that is there."""
    reader = SegmentReader(path)
    while reader.read():
        pass
    return reader


def test_a_committed_segment_without_an_owner_is_deleted(tmp_path: Path) -> None:
    path = segment(tmp_path, encode_frame(b"one"))
    finished = finish(finished_reader(path), committed=1)
    assert (finished.done, finished.rest, finished.aside) == (True, (), None)
    assert list(tmp_path.iterdir()) == []


def test_a_segment_is_left_while_its_owner_lives_and_done_with_when_another_has_deleted_it(
    tmp_path: Path,
) -> None:
    path = segment(tmp_path, encode_frame(b"one"))
    reader = finished_reader(path)
    with claim(path):
        finished = finish(reader, committed=1)
    assert (finished.done, finished.rest) == (False, ())
    assert path.exists()
    path.unlink()
    assert finish(reader, committed=1).done


def test_what_its_owner_wrote_last_is_to_be_committed_first(tmp_path: Path) -> None:
    path = segment(tmp_path, encode_frame(b"one"))
    reader = finished_reader(path)
    with path.open("ab") as file:
        file.write(encode_frame(b"two"))
    finished = finish(reader, committed=1)
    assert [(frame.seq, frame.record) for frame in finished.rest] == [(2, b"two")]
    assert not finished.done
    assert finish(reader, committed=2).done


def test_a_torn_tail_is_deleted_with_its_segment(tmp_path: Path) -> None:
    path = segment(tmp_path, encode_frame(b"one"), encode_frame(b"two")[:-1])
    assert finish(finished_reader(path), committed=1).done
    assert list(tmp_path.iterdir()) == []


def test_an_end_that_cannot_be_read_becomes_one_tombstone_and_then_the_file_is_set_aside(
    tmp_path: Path,
) -> None:
    path = segment(tmp_path, encode_frame(b"one"), b"\xff" * 100)
    content = path.read_bytes()
    reader = finished_reader(path)
    for _ in range(2):  # as often as it is asked, until the tombstone is committed
        (tombstone,) = finish(reader, committed=1).rest
        assert (tombstone.seq, tombstone.record, tombstone.checksum) == (2, b"", 0)
        assert "cannot be read" in tombstone.lost_reason
    finished = finish(reader, committed=2)
    assert (finished.done, finished.aside) == (True, path.with_name(f"{path.name}.damaged"))
    assert [(kept.name, kept.read_bytes()) for kept in tmp_path.iterdir()] == [
        (f"{path.name}.damaged", content)
    ]
    assert list_segments(tmp_path) == []


def test_a_segment_that_one_look_at_the_directory_missed_is_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look may miss a file that is made meanwhile, and show one that was made after it."""
    first, second, third = (f"{'ab' * 16}-{number:012d}.seg" for number in (1, 50, 99))
    looks = [[second], [third, first, second]]
    monkeypatch.setattr(os, "listdir", lambda _: looks.pop(0))
    # The third may have a forerunner that the second look missed.
    assert list_segments(tmp_path) == [tmp_path / first, tmp_path / second]
