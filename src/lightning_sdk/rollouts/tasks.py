"""Tasks, and where they come from."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from lightning_sdk.errors import ConfigError
from lightning_sdk.ids import unfit

# Columns that hold the id, the first that a row has.
ID_COLUMNS: Final = ("task_id", "id")
AGENT: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One row of a data set."""

    task_id: str
    # The row as JSON: what the agent's function gets as its one argument.
    input: Any
    # Kept with each rollout of the task.
    metadata: Mapping[str, Any] = field(default_factory=dict)
    # How often it is taken in one pass over the tasks; see `mixing.take`.
    weight: float = 1.0
    # "module:function", where it is not the run's.
    agent: str | None = None


def load_tasks(
    source: str | Path | Iterable[Any],
    *,
    id_column: str | None = None,
    agent_column: str | None = "agent",
    weight_column: str | None = None,
    config: str | None = None,
    split: str = "train",
) -> Sequence[Task]:
    """Read tasks.

    A row is any JSON value, mostly an object; the agent gets it whole. Without an id column its id is made from its
    content: the same row has the same id in every run, and of equal rows each further one gets a number.

    Args:
        source: a file (`.jsonl`, `.parquet`), a directory (a Hugging Face data set that was saved to disk, or
            one of data files), the name of a data set on the Hugging Face hub, or rows.
        id_column: where the id is. Default: `task_id` or `id`, where a row has one.
        agent_column: where "module:function" is, in rows that have this column. None: nowhere.
        weight_column: where the weight is, in rows that have this column. Default: nowhere.
        config: of a Hugging Face data set that has several.
        split: of a Hugging Face data set.

    Raises:
        ConfigError: there is nothing to read, or a row cannot be used; the message names it.
    """
    from lightning_sdk.rollouts import sources

    name, rows = sources.open_rows(source, config=config, split=split)
    tasks = [
        _task_of(row, f"{name}, row {number}", id_column, agent_column, weight_column)
        for number, row in enumerate(rows, 1)
    ]
    if not tasks:
        raise ConfigError(f"{name} has no rows: give at least one task")
    return list(_with_own_ids(tasks, name))


def _task_of(
    row: Any, where: str, id_column: str | None, agent_column: str | None, weight_column: str | None
) -> Task:
    if isinstance(row, Task):
        return row
    columns: Mapping[str, Any] = row if isinstance(row, dict) else {}
    content = _canonical(row, where)
    metadata = columns.get("metadata")
    return Task(
        task_id=_id_of(columns, where, id_column) or f"row-{hashlib.sha256(content).hexdigest()[:16]}",
        input=orjson.loads(content) if not isinstance(row, dict) else row,
        metadata=metadata if isinstance(metadata, dict) else {},
        weight=_weight_of(columns, where, weight_column),
        agent=_agent_of(columns, where, agent_column),
    )


def _canonical(row: Any, where: str) -> bytes:
    """The row as JSON with sorted keys. Refuses what a worker could not be told."""
    try:
        json.dumps(row, allow_nan=False)
        return orjson.dumps(row, option=orjson.OPT_SORT_KEYS)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{where} cannot be written as JSON: {error}") from None


def _id_of(columns: Mapping[str, Any], where: str, id_column: str | None) -> str | None:
    names = ID_COLUMNS if id_column is None else (id_column,)
    name = next((name for name in names if columns.get(name) is not None), None)
    if name is None:
        if id_column is not None:
            raise ConfigError(f"{where} has no {id_column!r}: every row needs one where --id-column names it")
        return None
    value = columns[name]
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise ConfigError(f"{where} has {name}={value!r}: an id is a string or a whole number")
    if reason := unfit(str(value)):
        raise ConfigError(f"{where}: its {name} {reason}")
    return str(value)


def _agent_of(columns: Mapping[str, Any], where: str, column: str | None) -> str | None:
    value = columns.get(column) if column else None
    if value is None:
        return None
    if not isinstance(value, str) or not AGENT.fullmatch(value):
        raise ConfigError(
            f"{where} has {column}={value!r}: expected module:function; if the column is no agent, "
            "say --agent-column ''"
        )
    return value


def _weight_of(columns: Mapping[str, Any], where: str, column: str | None) -> float:
    value = columns.get(column, 1.0) if column else 1.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e6:
        raise ConfigError(f"{where} has {column}={value!r}: a weight is a number from 0")
    return float(value)


def _with_own_ids(tasks: Iterable[Task], name: str) -> Iterator[Task]:
    """Number equal rows; refuse ids that the data itself repeats."""
    from dataclasses import replace

    seen: Counter[str] = Counter()
    for task in tasks:
        seen[task.task_id] += 1
        count = seen[task.task_id]
        if count == 1:
            yield task
        elif task.task_id.startswith("row-"):
            yield replace(task, task_id=f"{task.task_id}-{count}")
        else:
            raise ConfigError(
                f"{name} has several rows with the id {task.task_id!r}: ids must differ, or name another "
                "column with --id-column"
            )
