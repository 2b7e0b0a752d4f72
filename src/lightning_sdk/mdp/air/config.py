"""Rules as they are declared: a table each, by the name of its component."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from lightning_sdk.errors import ConfigError
from lightning_sdk.mdp.air.rules import (
    EmptyAnswer,
    Function,
    InvalidArguments,
    RefusedHandoff,
    RepeatedAction,
    Rule,
    SqlError,
    ToolError,
    UnparsableOutput,
)

_RULES: Final[Mapping[str, Any]] = {
    "tool_error": ToolError,
    "invalid_arguments": InvalidArguments,
    "unparsable_output": UnparsableOutput,
    "sql_error": SqlError,
    "repeated_action": RepeatedAction,
    "refused_handoff": RefusedHandoff,
    "empty_answer": EmptyAnswer,
    "function": Function,
}


def rules_from_config(tables: Mapping[str, Any]) -> tuple[Rule, ...]:
    """Rules from tables, as TOML and JSON have them.

        [tool_error]                          # the rule of that name
        weight = -0.1

        [slow_query]                          # a name of its own
        rule = "sql_error"
        tools = "query|run_sql"
        weight = -0.2

        [rambling]                            # a function of an episode to findings
        rule = "function"
        function = "my_package.rules:find_rambling"
        weight = -0.5

    A function is imported, so declare only what you would run.

    Args:
        tables: by the name of the component.

    Raises:
        ConfigError: a rule or key that there is not, a value that cannot be used, a function that cannot be imported.
    """
    return tuple(_rule(name, table) for name, table in tables.items())


def _rule(name: str, table: Any) -> Rule:
    if not isinstance(table, Mapping):
        raise ConfigError(f"the AIR rule {name!r} is {table!r}; give a table such as weight = -0.1")
    settings = dict(table)
    kind = settings.pop("rule", name)
    if not isinstance(kind, str) or kind not in _RULES:
        raise ConfigError(f"there is no AIR rule {kind!r}; rule = is one of {', '.join(_RULES)}")
    made = _RULES[kind]
    known = [field.name for field in fields(made) if field.name != "name"]
    unknown = [key for key in settings if key not in known]
    if unknown:
        raise ConfigError(
            f"the AIR rule {name!r} has the key {unknown[0]!r}; {kind} takes {', '.join(known)}"
        )
    missing = [key for key in ("weight", "function") if key in known and key not in settings]
    if missing:
        raise ConfigError(f"the AIR rule {name!r} has no {missing[0]}; {kind} needs one")
    if "tools" in settings and not isinstance(settings["tools"], str):
        raise ConfigError(
            f"the AIR rule {name!r} has tools={settings['tools']!r}; give a pattern like 'sql*|query'"
        )
    if "function" in settings:
        settings["function"] = _import(name, settings["function"])
    rule: Rule = made(name=name, **settings)
    return rule


def _import(name: str, path: Any) -> Any:
    module, _, attribute = path.partition(":") if isinstance(path, str) else ("", "", "")
    if not module or not attribute:
        raise ConfigError(f"the AIR rule {name!r} has function={path!r}; give 'package.module:function'")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"the AIR rule {name!r}: {path!r} cannot be imported: {error}") from None
    if not callable(function):
        raise ConfigError(f"the AIR rule {name!r}: {path!r} cannot be called; give a function of an episode")
    return function
