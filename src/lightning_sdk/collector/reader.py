"""What reads the stored rollouts: through a collector, or straight from the store where nobody serves it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol, TypeVar

import grpc

from lightning_sdk._proto.read_pb2 import RolloutQuery, RolloutRecords, RolloutSummary, Stats, StatsRequest
from lightning_sdk._proto.read_pb2_grpc import ReadStub
from lightning_sdk.addresses import bearer, grpc_target
from lightning_sdk.collector.address import read_announcement
from lightning_sdk.collector.adopt import adopt_spool
from lightning_sdk.collector.status import from_status
from lightning_sdk.collector.store.base import RecordReader, SourcedRollout, episodes_of, to_sourced
from lightning_sdk.collector.store.home import open_home_store
from lightning_sdk.collector.store.ownership import owner_pid
from lightning_sdk.collector.store.sqlite_read import SqliteReader
from lightning_sdk.errors import StoreBusyError
from lightning_sdk.home import Home
from lightning_sdk.mdp import Episode
from lightning_sdk.mdp.fingerprint import fingerprint

# How long another command may take to adopt the spool, or a collector to say where it listens.
_PATIENCE_S: Final = 10.0
_RETRY_EVERY_S: Final = 0.05
# A collector hashes nothing and computes nothing here: an answer that takes longer will not come.
_STATS_TIMEOUT_S: Final = 60.0

_Message = TypeVar("_Message")


class Reader(RecordReader, Protocol):
    """See `RecordReader`. Through a collector, `CollectorError` takes the place of `StoreError`."""


def open_reader(home: Home, *, endpoint: str | None = None, token: str | None = None) -> Reader:
    """Open what is stored, in the way that works.

    With an endpoint, through that collector. Else, where a collector owns the store of `home`, through it.
    Else adopt the spool of `home` into its store, which is made where there is none, and read that.

    Args:
        home: the state directory.
        endpoint: "grpc://host:port".
        token: the collector's token, where it has one.

    Raises:
        ConfigError: an endpoint that is none, or a token that cannot be sent.
        CollectorError: the collector cannot be reached, or asks for a token.
        StoreBusyError: something that is no collector has the store and does not give it back.
        StoreError: the store cannot be opened.
        SpoolError: the spool cannot be read.
    """
    if endpoint:
        return RemoteReader(endpoint, token)
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return _adopt_and_open(home)
        except StoreBusyError:
            announced = read_announcement(home.collector)
            # An announcement of any other process was left behind by a collector that was killed.
            if announced is not None and announced.pid == owner_pid(home.store):
                return RemoteReader(announced.address, token)
            if time.monotonic() >= deadline:
                raise
        time.sleep(_RETRY_EVERY_S)


def _adopt_and_open(home: Home) -> Reader:
    store = open_home_store(home)
    try:
        adopt_spool(home.spool, store)
    finally:
        store.close()
    # Reading needs no ownership: nobody waits for a long read.
    return SqliteReader(home.store)


class RemoteReader:
    """Reads through a collector. See `RecordReader`.

    Raises:
        ConfigError: an endpoint that is none, or a token that cannot be sent.
        CollectorError: the collector cannot be reached.
    """

    def __init__(self, endpoint: str, token: str | None = None) -> None:
        self._endpoint = endpoint
        self._metadata = bearer(token)
        # One message a rollout, however large: its sender is the collector that we chose.
        self._channel = grpc.insecure_channel(
            grpc_target(endpoint), options=[("grpc.max_receive_message_length", -1)]
        )
        self._stub = ReadStub(self._channel)  # type: ignore[no-untyped-call]
        try:
            self.stats()
        except BaseException:
            self._channel.close()
            raise

    def list_rollouts(self, query: RolloutQuery) -> Iterator[RolloutSummary]:
        """See `RecordReader.list_rollouts`."""
        return self._stream(self._stub.ListRollouts, query)

    def read_rollouts(self, query: RolloutQuery) -> Iterator[SourcedRollout]:
        """See `RecordReader.read_rollouts`."""
        return map(to_sourced, self._stream(self._stub.ReadRollouts, query))

    def read_episodes(self, query: RolloutQuery) -> Iterator[Episode]:
        """See `RecordReader.read_episodes`."""
        asked = RolloutQuery()
        asked.CopyFrom(query)
        asked.episode_code = fingerprint()
        rollouts: Iterator[RolloutRecords] = self._stream(self._stub.ReadRollouts, asked)
        for rollout in rollouts:
            yield from episodes_of(rollout, self)

    def stats(self) -> Stats:
        """See `RecordReader.stats`."""
        try:
            answer: Stats = self._stub.GetStats(
                StatsRequest(), metadata=self._metadata, timeout=_STATS_TIMEOUT_S
            )
        except grpc.RpcError as error:
            raise from_status(error, self._endpoint) from None
        return answer

    def close(self) -> None:
        """See `RecordReader.close`."""
        self._channel.close()

    def _stream(self, method: Callable[..., Any], query: RolloutQuery) -> Iterator[_Message]:
        answers = method(query, metadata=self._metadata)
        try:
            yield from answers
        except grpc.RpcError as error:
            raise from_status(error, self._endpoint) from None
        finally:
            answers.cancel()
