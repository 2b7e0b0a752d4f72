"""What runs inside the agent's process: scopes, records, the spool and its sender. Imports nothing heavy."""

# First of all, and with the package: a process that forks or ends must be seen by us whatever it has used.
from lightning_sdk.client import exits as exits
from lightning_sdk.client import forks as forks
