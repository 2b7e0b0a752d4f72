"""What every store must do: keep. Durable and idempotent; nothing is lost quietly."""

from __future__ import annotations

import random

import pytest

from lightning_sdk._proto.ingest_pb2 import Frame
from lightning_sdk.collector.store.base import Store
from lightning_sdk.errors import StoreBusyError, StoreError, WireError
from lightning_sdk.records import Record
from support.frames import Telling, note_frame, producer_id, to_frame, whole_rollout
from support.stores import ALL, OpenStore, P, add, summary_of


class KeepingContract:
    # 1. Durable and idempotent: a record is known by (producer, number), and stored once

    def test_an_ack_tells_the_last_number_without_a_gap(self, store: Store) -> None:
        ack = store.append(P, [note_frame(1), note_frame(2)])
        assert (ack.producer, ack.committed_through, list(ack.refusals)) == (P, 2, [])
        assert store.append(P, [note_frame(3)]).committed_through == 3
        assert store.high_water(P) == 3

    def test_a_producer_that_was_only_asked_about_is_unknown(self, store: Store) -> None:
        assert store.append(P, []).committed_through == 0
        assert store.high_water(P) == 0
        assert store.stats().counters["producers"] == 0

    def test_what_comes_again_changes_nothing(self, store: Store) -> None:
        telling = whole_rollout("a")
        add(store, telling)
        before = [(s.SerializeToString(), r) for s, r in store.read_rollouts(ALL)]
        before[0][1].sort(key=lambda sourced: sourced.seq)
        revision = summary_of(store, "a").revision
        ack = store.append(telling.producer, telling.frames)
        assert (ack.committed_through, list(ack.refusals)) == (9, [])
        assert store.stats().counters["records"] == 9
        assert store.stats().counters["duplicates"] == 9
        assert summary_of(store, "a").revision == revision

    def test_what_comes_again_within_one_batch_is_stored_once(self, store: Store) -> None:
        assert store.append(P, [note_frame(1), note_frame(1), note_frame(2)]).committed_through == 2
        assert store.stats().counters["records"] == 2

    def test_many_batches_are_one_transaction_with_an_ack_each(self, store: Store) -> None:
        other = producer_id("other")
        acks = store.append_many(
            [(P, [note_frame(1)]), (other, [note_frame(2)]), (P, [note_frame(2)]), (P, [])]
        )
        assert [(ack.producer, ack.committed_through) for ack in acks] == [(P, 1), (other, 0), (P, 2), (P, 2)]

    def test_everything_is_there_after_reopening(self, open_store: OpenStore) -> None:
        store = open_store()
        add(store, whole_rollout("a"))
        store.append(P, [note_frame(2), Frame(seq=3, lost_reason="gone")])
        seen = [rollout.SerializeToString() for rollout in store.read_stored(ALL)]
        counters = dict(store.stats().counters)
        store.close()
        store = open_store()
        try:
            assert [rollout.SerializeToString() for rollout in store.read_stored(ALL)] == seen
            assert dict(store.stats().counters) == counters
            assert store.append(P, [note_frame(1)]).committed_through == 3
        finally:
            store.close()

    def test_a_store_that_is_open_cannot_be_opened_again(self, store: Store, open_store: OpenStore) -> None:
        with pytest.raises(StoreBusyError, match=r"in use by process \d+"):
            open_store()

    def test_a_closed_store_says_so(self, open_store: OpenStore) -> None:
        store = open_store()
        store.close()
        store.close()
        with pytest.raises(StoreError, match="is closed"):
            store.append(P, [note_frame(1)])

    # 2. Nothing is lost quietly: gaps hold back the ack; what is refused or lost leaves a tombstone and a count

    def test_a_gap_holds_back_the_ack_until_it_is_filled(self, store: Store) -> None:
        assert (
            store.append(P, [note_frame(1), note_frame(3), note_frame(4), note_frame(6)]).committed_through
            == 1
        )
        assert store.append(P, [note_frame(2)]).committed_through == 4
        assert store.append(P, [note_frame(5)]).committed_through == 6
        assert store.stats().counters["records"] == 6

    def test_any_order_of_arrival_ends_in_the_same_ack(self, store: Store) -> None:
        frames = [note_frame(seq) for seq in range(1, 41)]
        random.Random(7).shuffle(frames)
        for first in range(0, 40, 5):
            ack = store.append(P, frames[first : first + 5])
        assert ack.committed_through == 40

    def test_another_record_under_a_taken_number_is_an_integrity_error(self, store: Store) -> None:
        store.append(P, [note_frame(1, b'{"a": 1}')])
        ack = store.append(P, [note_frame(1, b'{"a": 2}'), note_frame(2)])
        assert ack.committed_through == 2
        assert [(refusal.seq, "another record" in refusal.reason) for refusal in ack.refusals] == [(1, True)]
        assert store.stats().counters["integrity_errors"] == 1
        assert store.append(P, [note_frame(1, b'{"a": 1}')]).refusals == []

    @pytest.mark.parametrize(
        ("frame", "reason"),
        [
            (Frame(seq=1, checksum=1, record=note_frame(1).record), "the checksum of"),
            (Frame(seq=1, checksum=0x8587D865, record=b"abcde"), "not a lightning.v1.Record"),
            (Frame(seq=1, checksum=0, record=b""), "without a body"),
            (to_frame(1, Record(order=1 << 63, note={"values": b""})), "beyond 63 bits"),
            (to_frame(1, Record(rollout_id="x" * 300, note={"values": b""})), "300 characters"),
            (to_frame(1, Record(call={"call_id": "x" * 300})), "a call id of"),
        ],
    )
    def test_what_is_no_record_leaves_a_tombstone(self, store: Store, frame: Frame, reason: str) -> None:
        ack = store.append(P, [frame, note_frame(2)])
        assert ack.committed_through == 2
        (refusal,) = ack.refusals
        assert refusal.seq == 1
        assert reason in refusal.reason
        counters = store.stats().counters
        assert (counters["refused"], counters["tombstones"], counters["records"]) == (1, 1, 1)
        (again,) = store.append(P, [frame]).refusals
        assert again == refusal
        assert store.stats().counters["refused"] == 1

    @pytest.mark.parametrize("seq", [0, 1 << 63, (1 << 64) - 1])
    def test_a_number_that_no_record_can_have_is_refused(self, store: Store, seq: int) -> None:
        frame = note_frame(1)
        frame.seq = seq
        ack = store.append(P, [frame, note_frame(1)])
        assert ack.committed_through == 1
        assert [refusal.seq for refusal in ack.refusals] == [seq]
        assert store.stats().counters["refused"] == 1

    def test_a_lost_record_leaves_a_tombstone_and_what_follows_is_acked(self, store: Store) -> None:
        ack = store.append(P, [note_frame(1), Frame(seq=2, lost_reason="damaged on disk"), note_frame(3)])
        assert (ack.committed_through, list(ack.refusals)) == (3, [])
        counters = store.stats().counters
        assert (counters["lost"], counters["tombstones"], counters["records"]) == (1, 1, 2)

    def test_a_lost_record_that_is_found_takes_its_place(self, store: Store) -> None:
        store.append(P, [Frame(seq=1, lost_reason="damaged on disk")])
        store.append(P, [Frame(seq=1, lost_reason="damaged on disk")])
        store.append(P, [note_frame(1)])
        counters = store.stats().counters
        assert (counters["lost"], counters["tombstones"]) == (1, 0)
        assert (counters["recovered"], counters["records"], counters["duplicates"]) == (1, 1, 1)

    def test_a_stored_record_is_not_lost_by_word_of_mouth(self, store: Store) -> None:
        store.append(P, [note_frame(1)])
        store.append(P, [Frame(seq=1, lost_reason="damaged on disk")])
        assert (store.stats().counters["records"], store.stats().counters["tombstones"]) == (1, 0)

    def test_a_producer_id_of_another_length_is_refused_whole(self, store: Store) -> None:
        with pytest.raises(WireError, match="16 bytes, not 3"):
            store.append_many([(P, [note_frame(1)]), (b"abc", [note_frame(1)])])
        assert store.stats().counters["records"] == 0

    def test_records_of_no_rollout_are_counted(self, store: Store) -> None:
        telling = Telling()
        telling.reward("")
        telling.tokens("ca_1")
        add(store, telling)
        assert store.stats().counters["unbound"] == 1
