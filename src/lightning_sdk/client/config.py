"""The settings of the client: options of `init`, else `LIGHTNING_…` variables, else defaults; then frozen."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from lightning_sdk.addresses import checked_token, grpc_target, without_user
from lightning_sdk.client.routing import AgentPolicies, agents_of_variable, checked_agents
from lightning_sdk.client.urls import UrlPrefix
from lightning_sdk.errors import ConfigError
from lightning_sdk.home import Home, StrPath
from lightning_sdk.ids import unfit

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Config:
    """Checked settings. Paths are absolute."""

    # "grpc://host:port" of a collector; "": records stay in the spool.
    endpoint: str
    project: str
    home: Home
    # Names of the integrations to install; None: all that are found.
    integrations: tuple[str, ...] | None
    token: str | None = field(repr=False)
    # Called with every body before it is written, after the built-in patterns.
    redact: Callable[[bytes], bytes] | None
    # Base URL of our own policy endpoint, which gets call ids; "": none.
    policy_endpoint: str
    # What that endpoint asks for.
    policy_token: str | None = field(repr=False)
    # Whose calls go to it, wherever their code sends them; (): nobody's.
    agents: AgentPolicies
    # None: a fresh one for each init.
    run_id: str | None
    split: str | None
    # Whether threads, pools, processes and programs that a rollout starts belong to it.
    propagate: bool


_OPTIONS = frozenset({"spool_dir", *(setting.name for setting in fields(Config))})


# Settings of the process that this one was started by, in a rollout; for what nothing here says.
_inherited: dict[str, str] = {}


def inherit(settings: Mapping[str, str]) -> None:
    """Take over settings of the process that started this one, where neither `init` nor a variable says another."""
    _inherited.update((name, value) for name, value in settings.items() if name in _OPTIONS)


def propagates() -> bool:
    """What the environment says of `propagate`.

    Raises:
        ConfigError: neither yes nor no.
    """
    return _checked_flag("propagate", None)


def load_config(**given: Any) -> Config:
    """Settle every setting: what is given, else its environment variable, else its default.

    A value that is None counts as not given; `endpoint=""`, `policy_endpoint=""`, `agents=""` and
    `integrations=()` turn off what the environment sets. `LIGHTNING_INTEGRATIONS` is a list of names with
    commas, or "none"; `LIGHTNING_AGENTS` is patterns, or a JSON object.

    Args:
        given: the options of `init`, by name.

    Raises:
        ConfigError: a value cannot be used; the message names it and what would work.
        TypeError: there is no such option.
    """
    if unknown := sorted(given.keys() - _OPTIONS):
        raise TypeError(f"there is no option {', '.join(unknown)}")
    return _settle(given, _refuse)


def load_environment() -> tuple[Config, tuple[str, ...]]:
    """The settings of the environment, of a program that never asked for any: what cannot be used is ignored.

    Returns:
        The settings, and for each variable that was ignored a sentence that says so.
    """
    ignored: list[str] = []

    def ignore(error: ConfigError, instead: str) -> None:
        ignored.append(f"{error}; it is ignored: {instead}")

    return _settle({}, ignore), tuple(ignored)


# What to do about a value that cannot be used, and what is done instead where that returns.
_OnError = Callable[[ConfigError, str], None]


def _refuse(error: ConfigError, instead: str) -> None:
    raise error


def _settle(given: Mapping[str, Any], on_error: _OnError) -> Config:
    def settled(settle: Callable[[], _T], default: _T, instead: str) -> _T:
        try:
            return settle()
        except ConfigError as error:
            on_error(error, instead)
            return default

    located = Home.locate(
        _checked_path("home", given.get("home")), spool=_checked_path("spool_dir", given.get("spool_dir"))
    )
    policy_endpoint = settled(
        lambda: _checked_policy_endpoint(_text(given, "policy_endpoint", empty_ok=True) or ""),
        "",
        "no request carries a call id",
    )
    integrations = settled(
        lambda: _checked_integrations(given.get("integrations")), None, "all that are found are installed"
    )
    redact = given.get("redact")
    if redact is not None and not callable(redact):
        raise ConfigError(f"redact={redact!r} cannot be called: expected a function from bytes to bytes")
    return Config(
        endpoint=settled(
            lambda: _checked_endpoint(_text(given, "endpoint", empty_ok=True) or ""),
            "",
            f"records stay in {located.spool} until lsdk reads them",
        ),
        project=settled(lambda: _name(given, "project"), None, 'the project is "default"') or "default",
        home=located,
        integrations=integrations,
        token=settled(lambda: _checked_token(given, "token"), None, "no token is sent"),
        redact=redact,
        policy_endpoint=policy_endpoint,
        policy_token=settled(
            lambda: _checked_policy_token(given, policy_endpoint),
            None,
            "no token is sent to the policy endpoint",
        ),
        agents=settled(
            lambda: _checked_agents(given, policy_endpoint, integrations),
            (),
            "no call is routed, every agent keeps its own model",
        ),
        run_id=settled(lambda: _name(given, "run_id"), None, "the run gets a fresh id"),
        split=settled(lambda: _name(given, "split"), None, "rollouts are of no split"),
        propagate=settled(
            lambda: _checked_flag("propagate", given.get("propagate")),
            True,
            "rollouts go with what they start",
        ),
    )


def _variable(name: str) -> str:
    return f"LIGHTNING_{name.upper()}"


def _told(name: str) -> str | None:
    """What the environment says of a setting, else the process that started this one."""
    return os.environ.get(_variable(name)) or _inherited.get(name) or None


def _checked_flag(name: str, given: object) -> bool:
    """A setting that is on unless it is turned off."""
    if given is None:
        variable = os.environ.get(_variable(name), "").strip().lower()
        if variable not in ("", "0", "1", "true", "false", "yes", "no", "on", "off"):
            raise ConfigError(f"{_variable(name)}={variable!r} is neither yes nor no: expected 1 or 0")
        return variable not in ("0", "false", "no", "off")
    if not isinstance(given, bool):
        raise ConfigError(f"{name}={given!r} is neither yes nor no: expected True or False")
    return given


def _text(given: Mapping[str, Any], name: str, *, empty_ok: bool = False) -> str | None:
    """What is given, else a non-empty variable; None where there is neither."""
    value = given.get(name)
    if value is None:
        return _told(name)
    if not isinstance(value, str):
        raise ConfigError(f"{name}={value!r} is a {type(value).__name__}: expected a string")
    if not value.strip() and not empty_ok:
        raise ConfigError(f"{name}={value!r} is empty: give a name, or leave it out")
    return value


def _name(given: Mapping[str, Any], name: str) -> str | None:
    """`_text` that is written into records."""
    value = _text(given, name)
    if value is not None and (reason := unfit(value)):
        raise ConfigError(f"{name}={value!a} {reason}")
    return value


def _checked_path(name: str, given: StrPath | None) -> StrPath | None:
    if given is None and not os.environ.get(_variable(name)):
        given = _inherited.get(name)
    if given is not None and not isinstance(given, str | os.PathLike):
        raise ConfigError(f"{name}={given!r} is a {type(given).__name__}: expected a path")
    if given is not None and not str(given):
        raise ConfigError(f"{name}='' is empty: give a directory, or leave it out")
    return given


def _checked_endpoint(endpoint: str) -> str:
    if endpoint:
        grpc_target(endpoint)
    return endpoint


def _checked_token(given: Mapping[str, Any], name: str) -> str | None:
    token = given.get(name)
    if token is None:
        token = _told(name)
    elif not isinstance(token, str):
        # It may be a secret all the same.
        raise ConfigError(f"{name} is a {type(token).__name__}: expected a string")
    return None if token is None else checked_token(token, _variable(name))


def _checked_policy_token(given: Mapping[str, Any], policy_endpoint: str) -> str | None:
    if given.get("policy_token") is not None and not policy_endpoint:
        raise ConfigError("policy_token is given without a policy_endpoint: give both, or neither")
    return _checked_token(given, "policy_token")


def _checked_agents(
    given: Mapping[str, Any], policy_endpoint: str, integrations: tuple[str, ...] | None
) -> AgentPolicies:
    option = given.get("agents")
    agents = agents_of_variable(_told("agents") or "") if option is None else checked_agents(option)
    if not agents:
        return ()
    named = "|".join(pattern for pattern, _ in agents)
    if not policy_endpoint:
        raise ConfigError(
            f"agents={named!r} has nowhere to send their calls: give policy_endpoint, the base URL of the policy "
            "endpoint, such as http://127.0.0.1:8000/v1"
        )
    if integrations == ():
        raise ConfigError(
            f"agents={named!r} cannot be routed without an integration: name the one of their model's SDK in "
            "integrations, or leave that out"
        )
    return agents


def _checked_policy_endpoint(url: str) -> str:
    if not url:
        return ""
    try:
        UrlPrefix(url)
    except ValueError as error:
        raise ConfigError(
            f"policy_endpoint={without_user(url)!r} cannot be used, {error}: "
            "give the base URL of the endpoint, such as http://127.0.0.1:8000/v1"
        ) from None
    return url


def _checked_integrations(given: Iterable[str] | None) -> tuple[str, ...] | None:
    if given is None:
        variable = os.environ.get(_variable("integrations"))
        if not variable:
            return None
        given = () if variable.strip() == "none" else [name.strip() for name in variable.split(",")]
    elif isinstance(given, str):
        raise ConfigError(
            f"integrations={given!r} is one string: expected a list of names, such as [{given!r}]"
        )
    names = tuple(dict.fromkeys(given))
    if names:
        _check_known(names)
    return names


def _check_known(names: tuple[str, ...]) -> None:
    from lightning_sdk import plugins

    known = sorted({plugin.name for plugin in plugins.discover(plugins.INTEGRATIONS)})
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigError(
            f"integrations names {', '.join(map(repr, unknown))}, which nothing provides: "
            f"installed are {', '.join(known) or 'none'}"
        )
