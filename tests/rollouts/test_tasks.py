"""Tasks: where they come from, what they are called, and how sets of them are mixed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lightning_sdk.errors import ConfigError
from lightning_sdk.rollouts.mixing import TaskSet, merge, take
from lightning_sdk.rollouts.tasks import Task, load_tasks


def write_jsonl(path: Path, *rows: Any) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_the_agent_gets_the_whole_row_of_a_jsonl_file(tmp_path: Path) -> None:
    row = {"id": 7, "question": "2+2", "metadata": {"level": "easy"}}
    (task,) = load_tasks(write_jsonl(tmp_path / "t.jsonl", row))
    assert task == Task(task_id="7", input=row, metadata={"level": "easy"})


def test_a_row_may_be_any_json_value() -> None:
    assert [task.input for task in load_tasks(["a question", [1, 2], 3])] == ["a question", [1, 2], 3]


def test_without_an_id_the_content_gives_one_that_is_the_same_in_any_order_of_columns() -> None:
    one, other = load_tasks([{"a": 1, "b": 2}])[0], load_tasks([{"b": 2, "a": 1}])[0]
    assert one.task_id == other.task_id
    assert one.task_id != load_tasks([{"a": 1, "b": 3}])[0].task_id


def test_equal_rows_without_ids_are_different_tasks() -> None:
    first, second = load_tasks([{"a": 1}, {"a": 1}])
    assert second.task_id == f"{first.task_id}-2"


def test_ids_that_repeat_are_refused() -> None:
    with pytest.raises(ConfigError, match="several rows with the id '1': ids must differ"):
        load_tasks([{"id": 1}, {"id": "1"}])


def test_a_row_may_name_its_agent_and_weight() -> None:
    (task,) = load_tasks([{"agent": "my.module:Class.method", "often": 2}], weight_column="often")
    assert (task.agent, task.weight) == ("my.module:Class.method", 2.0)


@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        ({"agent": "Smith"}, {}, "row 1 has agent='Smith': expected module:function"),
        ({"id": 1.5}, {}, "row 1 has id=1.5: an id is a string or a whole number"),
        ({"id": "x" * 300}, {}, "row 1: its id has 300 characters"),
        ({"a": 1}, {"id_column": "key"}, "row 1 has no 'key'"),
        ({"w": -1}, {"weight_column": "w"}, "row 1 has w=-1: a weight is a number from 0"),
        ({"a": float("nan")}, {}, "row 1 cannot be written as JSON"),
        ({"a": 1 << 70}, {}, "row 1 cannot be written as JSON"),
        ({"a": b"bytes"}, {}, "row 1 cannot be written as JSON"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(row: Any, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_tasks([row], **options)


def test_a_line_that_is_no_json_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"id": 1}\n\n{"id": NaN}\n')
    with pytest.raises(ConfigError, match=r"t\.jsonl, line 3 is not JSON"):
        load_tasks(path)


@pytest.mark.parametrize("name", ["missing.jsonl", "./nowhere", "a/b/c"])
def test_a_file_that_is_not_there_is_never_looked_for_elsewhere(name: str) -> None:
    with pytest.raises(ConfigError, match="there is no file"):
        load_tasks(name)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no rows"):
        load_tasks(write_jsonl(tmp_path / "t.jsonl"))


def test_parquet_gives_the_same_tasks_as_jsonl(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [{"id": "a", "n": 1, "list": [1.5, 2.0]}, {"id": "b", "n": None, "list": []}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "t.parquet")
    assert load_tasks(tmp_path / "t.parquet") == load_tasks(write_jsonl(tmp_path / "t.jsonl", *rows))


def test_a_hugging_face_data_set_that_was_saved_to_disk_is_read_by_its_split(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    sets = {name: datasets.Dataset.from_list([{"id": name, "q": 1}]) for name in ("train", "test")}
    datasets.DatasetDict(sets).save_to_disk(str(tmp_path / "saved"))
    assert [task.task_id for task in load_tasks(tmp_path / "saved", split="test")] == ["test"]
    with pytest.raises(ConfigError, match="has no split 'dev': it has train, test"):
        load_tasks(tmp_path / "saved", split="dev")


def tasks(*ids: str, **facts: Any) -> list[Task]:
    return [Task(task_id=each, input={}, **facts) for each in ids]


def test_one_set_is_taken_once_and_in_order() -> None:
    taken = take([TaskSet("a", tasks("1", "2", "3"))])
    assert [(task.task_id, round) for task, round in taken] == [("1", 0), ("2", 0), ("3", 0)]


def test_weights_of_set_and_task_multiply_and_each_further_take_is_a_round_of_its_own() -> None:
    taken = take([TaskSet("a", [*tasks("1"), *tasks("2", weight=2.0)], weight=1.0)])
    assert [(task.task_id, round) for task, round in taken] == [("1", 0), ("2", 0), ("2", 1)]


def test_a_fraction_takes_that_share_of_the_tasks_the_same_for_the_same_seed() -> None:
    half = TaskSet("a", tasks(*map(str, range(1000))), weight=1.5)
    counts = Counter(task.task_id for task, _ in take([half], seed=3))
    assert set(counts.values()) == {1, 2}
    assert 440 < sum(count == 2 for count in counts.values()) < 560
    assert take([half], seed=3) == take([half], seed=3)
    assert take([half], seed=3) != take([half], seed=4)


def test_several_sets_are_spread_evenly_and_their_ids_kept_apart() -> None:
    sets = merge([TaskSet("m", tasks("1", "2", "3", "4")), TaskSet("c", tasks("1", "2"))])
    taken = [task.task_id for task, _ in take(sets)]
    assert taken == ["m/1", "c/1", "m/2", "m/3", "c/2", "m/4"]


def test_two_sets_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="two sets of tasks are called 'a'"):
        merge([TaskSet("a", tasks("1")), TaskSet("a", tasks("2"))])


def test_shuffling_is_by_the_seed_and_a_limit_takes_the_beginning() -> None:
    many = [TaskSet("a", tasks(*map(str, range(50))))]
    shuffled = take(many, seed=1, shuffled=True)
    assert shuffled == take(many, seed=1, shuffled=True)
    assert shuffled != take(many, seed=2, shuffled=True)
    assert take(many, seed=1, shuffled=True, limit=5) == shuffled[:5]
