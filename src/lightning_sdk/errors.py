"""Every error that lightning_sdk raises on purpose.

    LightningError
    ├── ConfigError        (ValueError)    a setting that cannot be used
    ├── SpoolError         (OSError)       the spool cannot be written or read
    ├── StoreError         (OSError)       the store cannot be opened, written or read
    │   └── StoreBusyError                 another process owns it
    ├── CollectorError     (ConnectionError)  the collector cannot be reached, or refused
    ├── WireError          (ValueError)    bytes from outside that are not what they claim to be
    ├── PluginError        (LookupError)   a backend or integration that is unknown or does not load
    ├── ExportError        (ValueError)    a dataset that cannot be made from what there is
    ├── PublishError       (RuntimeError)  weights that an endpoint did not take
    ├── AgentError         (ImportError)   an agent's function that cannot be imported
    ├── RoutingError       (RuntimeError)  a call of a routed agent that cannot go to the policy endpoint
    └── RunError           (RuntimeError)  a run of rollouts or of training that cannot go on

A message says what was found, what was expected and what to do: the command line prints it alone, on one
line, and exits with 2. None of these ever reaches the agent's code from a patched library, but for RoutingError,
and that only where routing was asked for.
"""

from __future__ import annotations


class LightningError(Exception):
    """Root of all of them."""


class ConfigError(LightningError, ValueError):
    """A setting that cannot be used. The message names the setting and a value that works."""


class SpoolError(LightningError, OSError):
    """The spool cannot be written or read."""


class StoreError(LightningError, OSError):
    """The store cannot be opened, written or read."""


class StoreBusyError(StoreError):
    """Another process owns the store."""


class CollectorError(LightningError, ConnectionError):
    """The collector cannot be reached, or refused what was asked."""


class WireError(LightningError, ValueError):
    """Bytes from outside that are not what they claim to be."""


class PluginError(LightningError, LookupError):
    """A backend or integration that is unknown or does not load."""


class ExportError(LightningError, ValueError):
    """A dataset that cannot be made from what there is."""


class PublishError(LightningError, RuntimeError):
    """Weights that an endpoint did not take. It serves what it served before."""


class AgentError(LightningError, ImportError):
    """An agent's function that cannot be imported."""


class RoutingError(LightningError, RuntimeError):
    """A model call of a routed agent that cannot go to the policy endpoint. It was not made."""


class RunError(LightningError, RuntimeError):
    """A run of rollouts or of training that cannot go on. The message says why, and how to resume."""
