"""The token: every RPC must carry it, and one that does not is told so before it has sent anything."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub

from lightning_sdk._proto.ingest_pb2 import IngestRequest
from lightning_sdk._proto.ingest_pb2_grpc import IngestStub
from lightning_sdk._proto.read_pb2 import RolloutQuery, StatsRequest
from lightning_sdk._proto.read_pb2_grpc import ReadStub
from lightning_sdk.collector.reader import open_reader
from lightning_sdk.collector.server import Collector
from lightning_sdk.collector.store.sqlite import SqliteStore
from lightning_sdk.errors import CollectorError, ConfigError
from lightning_sdk.home import Home
from support.collectors import batch_request, collector_thread, send
from support.frames import note_frame, producer_id


@pytest.fixture
def target(tmp_path: Path) -> Iterator[str]:
    store = SqliteStore(tmp_path / "traces.db")
    with collector_thread(store, token="s3cret") as target:
        yield target
    store.close()


RPCS: dict[str, Callable[[grpc.Channel, Any], Any]] = {
    "stream": lambda channel, metadata: list(
        IngestStub(channel).Stream(iter([]), metadata=metadata, timeout=20)
    ),
    "list": lambda channel, metadata: list(
        ReadStub(channel).ListRollouts(RolloutQuery(), metadata=metadata, timeout=20)
    ),
    "read": lambda channel, metadata: list(
        ReadStub(channel).ReadRollouts(RolloutQuery(), metadata=metadata, timeout=20)
    ),
    "stats": lambda channel, metadata: ReadStub(channel).GetStats(
        StatsRequest(), metadata=metadata, timeout=20
    ),
    "otlp": lambda channel, metadata: TraceServiceStub(channel).Export(
        ExportTraceServiceRequest(), metadata=metadata, timeout=20
    ),
}


@pytest.mark.parametrize("rpc", RPCS)
@pytest.mark.parametrize(
    "metadata",
    [(), (("authorization", "Bearer wrong"),), (("authorization", "s3cret"),), (("token", "s3cret"),)],
)
def test_no_rpc_works_without_it(target: str, rpc: str, metadata: tuple[tuple[str, str], ...]) -> None:
    with grpc.insecure_channel(target) as channel, pytest.raises(grpc.RpcError) as caught:
        RPCS[rpc](channel, metadata)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert "LIGHTNING_TOKEN" in caught.value.details()
    assert "s3cret" not in caught.value.details()


@pytest.mark.parametrize("rpc", RPCS)
def test_every_rpc_works_with_it(target: str, rpc: str) -> None:
    with grpc.insecure_channel(target) as channel:
        RPCS[rpc](channel, (("authorization", "Bearer s3cret"),))


def test_a_stream_is_refused_before_it_has_sent_anything(target: str) -> None:
    requests: queue.Queue[IngestRequest | None] = queue.Queue()
    with grpc.insecure_channel(target) as channel:
        answers = IngestStub(channel).Stream(iter(requests.get, None), timeout=20)
        with pytest.raises(grpc.RpcError) as caught:
            next(answers)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        requests.put(None)


def test_records_are_taken_with_it(target: str) -> None:
    producer = producer_id("p")
    metadata = (("authorization", "Bearer s3cret"),)
    (ack,) = send(target, [batch_request(producer, [note_frame(1)])], metadata)
    assert ack.committed_through == 1


def test_a_reader_shows_it_or_is_told_of_it(target: str, tmp_path: Path) -> None:
    home = Home.locate(tmp_path / "home")
    with pytest.raises(CollectorError, match="set LIGHTNING_TOKEN"):
        open_reader(home, endpoint=f"grpc://{target}")
    reader = open_reader(home, endpoint=f"grpc://{target}", token="s3cret")
    assert reader.stats().counters["records"] == 0
    reader.close()


@pytest.mark.parametrize("token", ["schlüssel", "two\nlines", " s3cret ", "\udcff"])
def test_a_token_that_cannot_be_sent_is_refused_by_both_ends_without_repeating_it(
    target: str, tmp_path: Path, token: str
) -> None:
    home = Home.locate(tmp_path / "home")
    store = SqliteStore(tmp_path / "other.db")
    for use in (
        lambda: open_reader(home, endpoint=f"grpc://{target}", token=token),
        lambda: Collector(store, token=token),
    ):
        with pytest.raises(ConfigError, match="LIGHTNING_TOKEN") as caught:
            use()
        assert token not in str(caught.value)
    store.close()
