"""An `lsdk` command as a child process that ends with its parent: `python -m lightning_sdk.training.child FD …`.

The parent holds the other end of a pipe. When that closes, because the parent ended, was killed or says so, the
command gets SIGTERM, as Ctrl-C would end it, and SIGKILL where it takes too long.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
from typing import Final

# What a collector may take to store, and an endpoint to finish, what they have begun.
_GRACE_S: Final = 20.0


def _end_with(descriptor: int) -> None:
    os.read(descriptor, 1)
    killer = threading.Timer(_GRACE_S, os.kill, (os.getpid(), signal.SIGKILL))
    killer.daemon = True
    killer.start()
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Watch the pipe in a thread, and be `lsdk` otherwise."""
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    threading.Thread(target=_end_with, args=(descriptor,), name="parent", daemon=True).start()
    sys.argv[1:] = sys.argv[2:]
    runpy.run_module("lightning_sdk", run_name="__main__")


if __name__ == "__main__":
    main()
