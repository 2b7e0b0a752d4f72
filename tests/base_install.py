"""Run by `nox -s base`, without pytest: what the base dependencies alone can do.

Usage: python tests/base_install.py PROTOBUF_MAJOR
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from pathlib import Path

EXTRAS = ["openai", "torch", "transformers", "click", "rich", "pydantic", "starlette", "orjson", "numpy"]


def main() -> None:
    """Record a rollout to the spool, read it back, and assemble it."""
    present = [name for name in EXTRAS if importlib.util.find_spec(name)]
    assert not present, f"this environment is not bare: {present}"
    import google.protobuf

    assert google.protobuf.__version__.split(".")[0] == sys.argv[1].split(".")[0]

    import lightning_sdk as ls
    from lightning_sdk._proto import ingest_pb2_grpc, read_pb2_grpc
    from lightning_sdk.client.segments import SegmentReader, list_segments
    from lightning_sdk.mdp import assemble
    from lightning_sdk.records import SourcedRecord, parse_record

    assert ingest_pb2_grpc.IngestStub
    assert read_pb2_grpc.ReadStub

    @ls.trace_tool
    def add(a: int, b: int) -> int:
        return a + b

    @ls.trace_agent
    def solve(task: str) -> int:
        return add(len(task), 2)

    assert solve("four") == 6
    ls.emit_reward(0.5)
    assert ls.flush(timeout=5)
    ls.shutdown()

    records = []
    for path in list_segments(Path(os.environ["LIGHTNING_HOME"], "spool")):
        reader = SegmentReader(path)
        records += [
            SourcedRecord(reader.header.producer, frame.seq, parse_record(frame.record))
            for frame in reader.read()
        ]
    (episode,) = assemble(records)
    assert (episode.outcome, episode.return_, [tool.name for tool in episode.tools]) == (
        "succeeded",
        0.5,
        ["add"],
    )
    print(f"recorded, read and assembled {len(records)} records on protobuf {google.protobuf.__version__}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as home:
        os.environ.update(LIGHTNING_HOME=home, LIGHTNING_STRICT="1")
        main()
