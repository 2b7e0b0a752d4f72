"""Rows from files and data sets."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NoReturn

import orjson

from lightning_sdk.errors import ConfigError

_HUB_NAME: Final = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
# Files that `datasets` writes when a data set is saved to disk.
_SAVED: Final = ("dataset_info.json", "dataset_dict.json", "state.json")


def open_rows(
    source: str | Path | Iterable[Any], *, config: str | None, split: str
) -> tuple[str, Iterable[Any]]:
    """What `source` is called in messages, and its rows.

    Raises:
        ConfigError: it cannot be read. Reading the rows may raise it too.
    """
    if not isinstance(source, str | Path):
        return "tasks", source
    path, name = Path(source).expanduser(), str(source)
    if path.is_file():
        reader = _READERS.get(path.suffix.lower())
        if reader is None:
            raise ConfigError(
                f"{name} is no kind of file that has tasks: expected one of {', '.join(_READERS)}"
            )
        return name, reader(path)
    if path.is_dir():
        return name, _hugging_face(
            name, config, split, on_disk=any((path / file).exists() for file in _SAVED)
        )
    if path.suffix.lower() in _READERS or not _HUB_NAME.fullmatch(name):
        raise ConfigError(f"there is no file {name}: give a file, a directory or the name of a data set")
    return name, _hugging_face(name, config, split, on_disk=False)


def _read_jsonl(path: Path) -> Iterator[Any]:
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _parse(line, f"{path}, line {number}")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None


def _parse(line: bytes, where: str) -> Any:
    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is no JSON")

    try:
        return json.loads(line, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is not JSON ({error}): expected one JSON value a line") from None


def _read_parquet(path: Path) -> Iterator[Any]:
    try:
        import pyarrow.parquet
    except ImportError:
        try:
            import datasets
        except ImportError:
            raise ConfigError(f"{path} needs a reader of Parquet: pip install pyarrow") from None
        yield from _plain_rows(_quietly(path, lambda: datasets.Dataset.from_parquet(str(path))), str(path))
        return
    file = _quietly(path, lambda: pyarrow.parquet.ParquetFile(path))
    for batch in file.iter_batches():
        yield from _plain_rows(batch.to_pylist(), str(path))


def _hugging_face(name: str, config: str | None, split: str, *, on_disk: bool) -> Iterator[Any]:
    try:
        import datasets
    except ImportError:
        raise ConfigError(f"{name} is a Hugging Face data set: pip install datasets") from None
    if on_disk:
        found = _quietly(name, lambda: datasets.load_from_disk(name))
        if isinstance(found, datasets.DatasetDict):
            if split not in found:
                raise ConfigError(f"{name} has no split {split!r}: it has {', '.join(map(str, found))}")
            found = found[split]
    else:
        found = _quietly(name, lambda: datasets.load_dataset(name, config, split=split))
    yield from _plain_rows(found, name)


def _quietly(name: str | Path, read: Callable[[], Any]) -> Any:
    """Whatever a library finds wrong with data is the data's, and one sentence."""
    try:
        return read()
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        raise ConfigError(f"{name} cannot be read: {type(error).__name__}: {lines[0]}") from None


def _plain_rows(rows: Iterable[Any], name: str) -> Iterator[Any]:
    """Rows with nothing but JSON in them: times become ISO 8601, what is no number null."""
    number = 1
    try:
        for row in rows:
            yield orjson.loads(orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY, default=_decimal))
            number += 1
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{name}, row {number} has a value that JSON does not have ({error}): drop that column"
        ) from None


def _decimal(value: Any) -> Any:
    from decimal import Decimal

    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(type(value).__name__)


_READERS: Final[dict[str, Callable[[Path], Iterator[Any]]]] = {
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
    ".parquet": _read_parquet,
}
