"""What every store promises. tests/support/store_contract.py holds it to that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from lightning_sdk._proto.ingest_pb2 import Ack, Frame
from lightning_sdk._proto.read_pb2 import RolloutQuery, RolloutRecords, RolloutSummary, Stats
from lightning_sdk.mdp import Episode, Transition, assemble
from lightning_sdk.mdp.columns import decode_episode
from lightning_sdk.records import SourcedRecord, parse_record

# Frames of one producer, in order.
Batch = tuple[bytes, Sequence[Frame]]
SourcedRollout = tuple[RolloutSummary, list[SourcedRecord]]


class RecordReader(Protocol):
    """The read side.

    Thread safety: every method may be called from any thread, while records are being appended. An iterator
    belongs to whoever asked for it: one thread at a time.

    Snapshots: which rollouts an iterator yields is fixed when it is first advanced. Each summary is true at
    the moment it is yielded, and agrees with the records beside it; nothing holds up the writer in between.
    """

    def list_rollouts(self, query: RolloutQuery) -> Iterator[RolloutSummary]:
        """Summaries, newest first.

        A prefix in `rollout_id_prefixes` may leave out the kind: "3f" finds "ro_3f…"; so may one in
        `call_id_prefixes`, which finds rollouts by a call of any attempt. With a limit, the newest.

        Raises:
            StoreError: the store cannot be read.
        """

    def read_rollouts(self, query: RolloutQuery) -> Iterator[SourcedRollout]:
        """The same rollouts with all records of all attempts, oldest first.

        Included are Tokens of its calls, and rewards that name one of them and no rollout. Left out are spans
        that tell again of a call that one of our own clients recorded.

        Records come by start time, whatever the order in which they arrived.

        Raises:
            StoreError: the store cannot be read.
        """

    def read_episodes(self, query: RolloutQuery) -> Iterator[Episode]:
        """What `assemble` makes of each of the same rollouts, oldest first.

        Complete ones the store may have assembled already; then observations and actions are read from it when
        somebody looks at them, which needs the reader to be open.

        Raises:
            StoreError: the store cannot be read.
        """

    def stats(self) -> Stats:
        """Counters since the store was made; each of its own is there, even at 0.

        records, tombstones, rollouts, producers: what is stored. duplicates: frames that were here already.
        integrity_errors: frames whose place another record holds. refused: frames that are no record, or
        not the one that their checksum tells. lost: frames whose record was gone before it could be sent.
        recovered: records that came after all for a place that held a tombstone. unbound: records of no
        rollout, except Tokens, Counters and rewards that were joined to one by the call that they name.
        duplicate_spans: spans left out, since one of our own calls holds their ids. And "client.<name>": what
        producers have counted themselves, the latest of each, summed; these are there where they are not 0.

        Raises:
            StoreError: the store cannot be read.
        """

    def close(self) -> None:
        """Give up what is held. Idempotent; nothing else may be called afterwards."""


class Store(RecordReader, Protocol):
    """Records by (producer, number), and the rollouts that they tell of.

    Ownership: a store that is open for writing is owned by one process; opening it in a second one raises
    StoreBusyError there.

    Identity: a record is known by (producer, seq). What is there already changes nothing when it comes
    again; the same place with another checksum is an integrity error: counted, refused, and the first
    record stays. A frame that is no record, or does not have its checksum, or has a lost_reason, leaves a
    tombstone in its place; a good record that comes later for that place replaces the tombstone.
    """

    def append(self, producer: bytes, frames: Sequence[Frame]) -> Ack:
        """`append_many` of one batch."""

    def append_many(self, batches: Sequence[Batch]) -> list[Ack]:
        """Store batches in one transaction: durable when it returns, and all of it or nothing.

        Frames may come in any order, with gaps, and again. No content of a frame raises.

        Returns:
            One Ack a batch: everything up to `committed_through` is stored or has a tombstone; `refusals`
            tell of this batch's frames that were not taken, and why.

        Raises:
            WireError: a producer id that is not 16 bytes; nothing was stored.
            StoreError: it cannot be written (full, read-only, damaged); nothing was stored.
        """

    def high_water(self, producer: bytes) -> int:
        """The number up to which all records of the producer are stored or have a tombstone; 0 if unknown."""

    def keep_episodes(self, limit: int) -> int:
        """Assemble complete rollouts that were not assembled as they are now, and keep what they become.

        Returns:
            How many there were, at most `limit`.

        Raises:
            StoreError: it cannot be read or written.
        """

    def read_stored(self, query: RolloutQuery) -> Iterator[RolloutRecords]:
        """`read_rollouts` in the form that crosses the wire, without a look into the records.

        With `query.episode_code`, rollouts that this code has assembled come as `episode`.
        """


def to_sourced(rollout: RolloutRecords) -> SourcedRollout:
    """A rollout as it crosses the wire, with its records parsed.

    Raises:
        WireError: a record that this version cannot read.
    """
    records = [
        SourcedRecord(stored.producer, stored.seq, parse_record(stored.record)) for stored in rollout.records
    ]
    return rollout.summary, records


def episodes_of(rollout: RolloutRecords, reader: RecordReader) -> list[Episode]:
    """The episodes (nearly always one) of a rollout as it crosses the wire.

    Args:
        rollout: with its records, or with columns that this code made.
        reader: where the text of columns is read.

    Raises:
        WireError: a record that this version cannot read.
    """
    if rollout.episode:
        return [decode_columns(rollout.episode, reader)]
    return assemble(to_sourced(rollout)[1])


def decode_columns(columns: bytes, reader: RecordReader) -> Episode:
    """An episode from its columns; its text is read when somebody looks."""

    def load(rollout_id: str, attempt: int) -> list[Transition]:
        for summary, records in reader.read_rollouts(RolloutQuery(rollout_id_prefixes=[rollout_id])):
            if summary.rollout_id == rollout_id:
                told = assemble(item for item in records if item.record.attempt in (0, attempt))
                return [each for episode in told for each in episode.transitions]
        return []

    return decode_episode(columns, load)
