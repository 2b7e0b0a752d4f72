"""From a TOML file and `-o table.key=value` to checked settings; every problem is one sentence."""

from __future__ import annotations

import difflib
import importlib
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from lightning_sdk.errors import ConfigError
from lightning_sdk.home import StrPath
from lightning_sdk.training.settings import ONE_POLICY, Settings

# The standard library has it from 3.11 on, and the [server] extra what it was before.
_toml: Final[Any] = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

# A policy's name goes into a header and a URL, and names directories.
_POLICY_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
# Paths in a file are meant from its directory.
_PATHS: Final = (("run", "tasks"), ("validation", "tasks"), ("services", "weights_dir"))


def load_settings(
    file: Path | None = None,
    overrides: Iterable[str] = (),
    tables: Mapping[str, Mapping[str, Any]] | None = None,
) -> Settings:
    """The settings of a run.

    Args:
        file: TOML. Paths in it that are not absolute are meant from its directory.
        overrides: "table.key=value"; the value is TOML, or else text.
        tables: as the file, and stronger than it; overrides are stronger still. None stands for "not given".

    Raises:
        ConfigError: the file cannot be read; a table, key or value cannot be used.
    """
    merged: dict[str, dict[str, Any]] = {}
    if file is not None:
        _merge(merged, _from_directory(_read(file), file.absolute().parent))
    _merge(merged, tables or {})
    for override in overrides:
        _override(merged, override)
    return check(merged)


def check(tables: Mapping[str, Any]) -> Settings:
    """Settings from tables.

    Raises:
        ConfigError: a table, key or value cannot be used.
    """
    try:
        settings = Settings.model_validate(tables)
    except ValidationError as error:
        raise ConfigError(_sentence(error)) from None
    return _settle_policies(_settle_paths(settings))


def table_names() -> tuple[str, ...]:
    """Of the file, in order."""
    return tuple(Settings.model_fields)


def keys_of(table: str) -> Mapping[str, str]:
    """What each key of a table means; empty for a table whose keys are the user's."""
    model = Settings.model_fields[table].annotation
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        return {}
    return {name: field.description or "" for name, field in model.model_fields.items()}


def _read(file: Path) -> dict[str, Any]:
    try:
        tables: dict[str, Any] = _toml.loads(file.read_text(encoding="utf-8"))
        return tables
    except OSError as error:
        raise ConfigError(f"{file} cannot be read ({error.strerror}): expected a TOML file") from None
    except (UnicodeDecodeError, _toml.TOMLDecodeError) as error:
        raise ConfigError(f"{file} is no TOML: {error}") from None


def _from_directory(tables: dict[str, Any], directory: Path) -> dict[str, Any]:
    for table, key in _PATHS:
        value = tables.get(table, {}).get(key) if isinstance(tables.get(table), dict) else None
        # A data set's name is no path: only what is there, or looks like a file, is taken as one.
        if isinstance(value, str) and (key != "tasks" or (directory / value).exists() or Path(value).suffix):
            tables[table][key] = str(directory / Path(value).expanduser())
    policies = tables.get("policies")
    if isinstance(policies, dict):
        tables["policies"] = {
            name: str(directory / Path(value).expanduser()) if isinstance(value, str) else value
            for name, value in policies.items()
        }
    return tables


def _merge(into: dict[str, dict[str, Any]], tables: Mapping[str, Any]) -> None:
    for name, table in tables.items():
        if not isinstance(table, Mapping):
            raise ConfigError(
                f"{name} = {table!r} stands outside any table: expected a table [{name}] of keys"
            )
        given = {key: value for key, value in table.items() if value is not None}
        into.setdefault(name, {}).update(given)


def _override(tables: dict[str, dict[str, Any]], override: str) -> None:
    path, separator, text = override.partition("=")
    table, dot, key = path.strip().partition(".")
    if not (separator and dot and table and key):
        raise ConfigError(
            f"-o {override} is no setting: expected table.key=value, such as learning.rounds=50"
        )
    tables.setdefault(table, {})[key.strip().strip('"')] = _value(text.strip())


def _value(text: str) -> Any:
    try:
        return _toml.loads(f"value = {text}")["value"]
    except _toml.TOMLDecodeError:
        return text


def _sentence(error: ValidationError) -> str:
    """The first problem, and how many more there are."""
    problems = error.errors()
    first = problems[0]
    where = [str(part) for part in first["loc"]]
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    if first["type"] == "extra_forbidden":
        return _unknown(where) + more
    name = ".".join(where[:2])
    meaning = keys_of(where[0]).get(where[1], "") if len(where) > 1 else ""
    expected = first["msg"][:1].lower() + first["msg"][1:]
    told = f" ({meaning.rstrip('.')})" if meaning else ""
    return f"{name} = {first['input']!r} cannot be used: {expected}{told}{more}"


def _unknown(where: Sequence[str]) -> str:
    if len(where) == 1:
        return f"there is no table [{where[0]}]: {_nearest(where[0], table_names())}"
    table, key = where[0], where[1]
    return f"[{table}] has no key {key!r}: {_nearest(key, tuple(keys_of(table)))}"


def _nearest(name: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"


def _settle_paths(settings: Settings) -> Settings:
    """Make paths absolute: a run may be resumed from elsewhere."""

    def settled(source: str | None) -> str | None:
        path = Path(source).expanduser() if source is not None else None
        return str(path.absolute()) if path is not None and path.exists() else source

    policies = {name: model.expanduser().absolute() for name, model in settings.policies.items()}
    run = settings.run.model_copy(update={"tasks": settled(settings.run.tasks)})
    validation = settings.validation.model_copy(update={"tasks": settled(settings.validation.tasks)})
    return settings.model_copy(update={"policies": policies, "run": run, "validation": validation})


def _settle_policies(settings: Settings) -> Settings:
    """Route all agents to the one policy where nobody said otherwise, and refuse what leads nowhere."""
    policies, agents = settings.policies, settings.agents
    for name in policies:
        if not _POLICY_NAME.fullmatch(name):
            raise ConfigError(
                f"[policies] {name!r} cannot be a policy's name: use letters, digits, _ . and -, at most 128"
            )
    if not agents and len(policies) == 1:
        return settings.model_copy(update={"agents": {"*": next(iter(policies))}})
    for pattern, policy in agents.items():
        if policies and policy not in policies:
            raise ConfigError(
                f"[agents] {pattern!r} = {policy!r} names no policy: {_nearest(policy, tuple(policies))}"
            )
        if not all(pattern.split("|")):
            raise ConfigError(f"[agents] {pattern!r} is no name pattern; give one like 'writer|rewriter*'")
    unused = [name for name in policies if name not in agents.values()]
    if unused:
        raise ConfigError(
            f'no agent\'s calls go to policy {unused[0]!r}: say which in [agents], such as "*" = "{unused[0]}"'
        )
    return settings


def one_policy(model: StrPath | None) -> dict[str, str] | None:
    """The `[policies]` table of a run that trains one model."""
    return None if model is None else {ONE_POLICY: str(model)}
