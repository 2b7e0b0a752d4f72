"""Regenerate src/lightning_sdk/_proto from proto/, with grpcio-tools 1.63.2 (see `nox -s proto`).

That release writes code without a runtime version guard, so one set of checked-in files imports on
protobuf 5.29, 6 and 7. The generated imports name the proto package (`lightning.v1`), which belongs to
another distribution in Python; they are rewritten to the place where the files live.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "proto"
TARGET = ROOT / "src" / "lightning_sdk" / "_proto"


def generate(target: Path) -> None:
    """Write the generated modules of every proto file into `target`, replacing those there."""
    protos = sorted(SOURCE.glob("lightning/v1/*.proto"))
    with tempfile.TemporaryDirectory() as scratch:
        arguments = [f"-I{SOURCE}", f"--python_out={scratch}", f"--pyi_out={scratch}", f"--grpc_python_out={scratch}"]
        if protoc.main(["protoc", *arguments, *map(str, protos)]) != 0:
            sys.exit("protoc failed; its messages are above")
        for old in target.glob("*_pb2*"):
            old.unlink()
        for made in sorted(Path(scratch, "lightning", "v1").iterdir()):
            has_service = "service " in (SOURCE / "lightning" / "v1" / f"{made.name.split('_pb2')[0]}.proto").read_text()
            if made.name.endswith("_grpc.py") and not has_service:
                continue
            text = re.sub(r"^from lightning\.v1 import ", "from lightning_sdk._proto import ", made.read_text(), flags=re.M)
            (target / made.name).write_text(text)


if __name__ == "__main__":
    generate(TARGET)
