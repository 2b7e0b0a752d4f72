"""Which agents' model calls go to the policy endpoint, and to which policy there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from lightning_sdk.errors import ConfigError

if TYPE_CHECKING:
    from lightning_sdk.client.scope import Scope
    from lightning_sdk.plugins import Route

# A policy's name goes into a header as it is.
_POLICY_NAME: Final = re.compile(r"[!-$&-~]{1,256}")

# Shell patterns in their order, each with the name of a policy; None: the endpoint's default.
AgentPolicies = tuple[tuple[str, str | None], ...]


def checked_agents(agents: object) -> AgentPolicies:
    """The option `agents`: patterns of agents' names with "|", or a mapping from such to names of policies.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(agents, str):
        return _patterns(agents, None) if agents.strip() else ()
    if not isinstance(agents, Mapping):
        raise ConfigError(
            f"agents={agents!r} is a {type(agents).__name__}: expected patterns of agents' names such as "
            "'writer|rewriter', or a mapping from such to the names of policies"
        )
    found: list[tuple[str, str | None]] = []
    for patterns, policy in agents.items():
        if not isinstance(patterns, str):
            raise ConfigError(f"agents has the key {patterns!r}: expected patterns such as 'writer|rewriter'")
        found += _patterns(patterns, _checked_policy(patterns, policy))
    return tuple(found)


def agents_of_variable(text: str) -> AgentPolicies:
    """The variable LIGHTNING_AGENTS: patterns, or a JSON object.

    Raises:
        ConfigError: it is neither.
    """
    if not text.lstrip().startswith("{"):
        return checked_agents(text)
    import json

    try:
        return checked_agents(json.loads(text))
    except (ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"LIGHTNING_AGENTS begins as a JSON object and is none ({error}): give patterns such as "
            """writer|rewriter, or an object such as {"writer|rewriter": "policy-name"}"""
        ) from None


def _patterns(text: str, policy: str | None) -> AgentPolicies:
    patterns = [pattern.strip() for pattern in text.split("|")]
    if not all(patterns):
        raise ConfigError(
            f"agents has {text!r} with an empty pattern: expected such as 'writer|rewriter' or '*'"
        )
    return tuple((pattern, policy) for pattern in patterns)


def _checked_policy(patterns: str, policy: Any) -> str | None:
    if policy is None:
        return None
    if not isinstance(policy, str) or not _POLICY_NAME.fullmatch(policy):
        raise ConfigError(
            f"agents sends {patterns!r} to the policy {policy!r}: expected a name of visible ASCII characters "
            "without %, or None for the endpoint's default"
        )
    return policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """The routes of one configuration."""

    endpoint: str
    token: str | None = field(repr=False)
    agents: AgentPolicies

    def route(self, scope: Scope) -> Route | None:
        """That of the agent of `scope`: of the first pattern that its name matches; None: it has none."""
        from lightning_sdk.plugins import Route

        for pattern, policy in self.agents:
            if fnmatchcase(scope.agent, pattern):
                rollout = scope.rollout
                return Route(
                    endpoint=self.endpoint,
                    token=self.token,
                    policy=policy,
                    split=rollout.split,
                    rollout_id=rollout.rollout_id,
                    agent=scope.agent,
                )
        return None
