"""Regenerate src/lightning_sdk/_proto from proto/, with grpcio-tools 1.63.2 (`nox -s proto -- --write`).

That release writes code without a runtime version guard, so one set of checked-in files imports on
protobuf 5.29, 6 and 7. The generated imports name the proto package (`lightning.v1`), which belongs to
another distribution in Python; they are rewritten to the place where the files live.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "proto"
TARGET = ROOT / "src" / "lightning_sdk" / "_proto"


def generated() -> dict[str, str]:
    """The generated modules of every proto file, by file name."""
    protos = sorted(SOURCE.glob("lightning/v1/*.proto"))
    with_service = {path.stem for path in protos if re.search(r"^service ", path.read_text(), flags=re.M)}
    with tempfile.TemporaryDirectory() as scratch:
        outputs = [f"--{kind}_out={scratch}" for kind in ("python", "pyi", "grpc_python")]
        if protoc.main(["protoc", f"-I{SOURCE}", *outputs, *map(str, protos)]) != 0:
            sys.exit("protoc failed; its messages are above")
        made = {path.name: path.read_text() for path in Path(scratch, "lightning", "v1").iterdir()}
    return {
        name: re.sub(r"^from lightning\.v1 import ", "from lightning_sdk._proto import ", text, flags=re.M)
        for name, text in made.items()
        if not name.endswith("_pb2_grpc.py") or name.removesuffix("_pb2_grpc.py") in with_service
    }


def main() -> None:
    """Write the files, or compare them with those that are checked in."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", action="store_true", help="replace the checked-in files")
    action.add_argument("--check", action="store_true", help="exit 1 where they differ")
    arguments = parser.parse_args()

    wanted = generated()
    present = {path.name: path.read_text() for path in TARGET.glob("*_pb2*")}
    if arguments.check:
        different = sorted(name for name in wanted | present if wanted.get(name) != present.get(name))
        if different:
            sys.exit(f"differs from proto/: {', '.join(different)}. Run: nox -s proto -- --write")
        print(f"{len(wanted)} generated files agree with proto/")
        return
    for name in present:
        (TARGET / name).unlink()
    for name, text in wanted.items():
        (TARGET / name).write_text(text)


if __name__ == "__main__":
    main()
