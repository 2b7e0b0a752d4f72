"""Writes episodes as a JSONL dataset. A dataset is there whole, with its manifest, or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from lightning_backends.jsonl.atomic import AtomicFile
from lightning_backends.jsonl.manifest import Manifest
from lightning_sdk.errors import ConfigError, ExportError
from lightning_sdk.mdp import Episode, Group, native_record
from lightning_sdk.plugins import Report


def _transitions(episode: Episode) -> Iterable[dict[str, Any]]:
    return map(native_record, episode.transitions)


# What one episode becomes, by the name of the format.
_FORMATS: Final[Mapping[str, Callable[[Episode], Iterable[dict[str, Any]]]]] = {"transitions": _transitions}


class JsonlBackend:
    """One line a record, groups and episodes in the order given, and `<out>.manifest.json` about the whole.

    Both files are written beside their places, flushed to the disk and renamed at the very end, the data
    first; the checksum in the manifest tells whether the data beside it are those that it describes. Rollouts
    that still run or are incomplete are written as they are and counted in the manifest; so are transitions
    with a `drop_reason`.
    """

    fidelity: ClassVar[Literal["engine", "text"]] = "text"
    mode: ClassVar[Literal["offline", "online"]] = "offline"
    summary: ClassVar[str] = "dataset of transitions, one JSON object a line"

    def __init__(self, out: Path | str = "transitions.jsonl", format: str = "transitions") -> None:
        """Choose where to write, and what.

        Args:
            out: the file; its directory is made if need be, what is there is replaced.
            format: "transitions": the native dataset record of every transition.

        Raises:
            ConfigError: there is no such format, or `out` is a directory.
        """
        if format not in _FORMATS:
            raise ConfigError(f"format {format!r} is unknown: the formats are {', '.join(sorted(_FORMATS))}")
        self._format = format
        self._out = Path(out).expanduser().absolute()
        if self._out.is_dir():
            raise ConfigError(
                f"out {str(out)!r} is a directory: name a file in it, such as transitions.jsonl"
            )

    @classmethod
    def missing(cls) -> str | None:
        """What to install before it works, as one sentence; None when it is usable."""
        if find_spec("orjson") is None:
            return "orjson is not installed: pip install 'agent-lightning-sdk[server]'"
        return None

    def consume(self, groups: Iterable[Group]) -> Report:
        """Write all groups.

        Raises:
            ExportError: there is nothing to export, or a file cannot be written. What was there before stays.
        """
        about_path = self._out.with_name(f"{self._out.name}.manifest.json")
        manifest = Manifest(self._out.name, self._format)
        with AtomicFile(self._out) as data, AtomicFile(about_path) as about:
            self._write(groups, data, manifest)
            about.write(manifest.to_json())
            data.seal()
            about.seal()
            data.place()
            about.place()
        return Report(
            outputs={"data": self._out, "manifest": about_path},
            metrics={
                "groups": manifest.groups,
                "rollouts": manifest.rollouts,
                "transitions": manifest.transitions,
                **{f"drop_reason.{name}": count for name, count in sorted(manifest.drop_reasons.items())},
            },
        )

    def _write(self, groups: Iterable[Group], data: AtomicFile, manifest: Manifest) -> None:
        encode = _encoder()
        for group in groups:
            manifest.count_group()
            for episode in group.episodes:
                manifest.count_episode(episode)
                for record in _FORMATS[self._format](episode):
                    line = encode(record)
                    data.write(line)
                    manifest.count_line(line)
        if not manifest.rollouts:
            raise ExportError("nothing to export: no rollout was given; `lsdk rollouts` lists what there is")


def _encoder() -> Callable[[Any], bytes]:
    import orjson

    def encode(record: Any) -> bytes:
        try:
            return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
        except TypeError:
            # Half a surrogate pair or a number beyond 64 bits, which agents do send: slower, and all ASCII.
            text = json.dumps(record, allow_nan=False, separators=(",", ":"))
            return text.encode("ascii") + b"\n"

    return encode
