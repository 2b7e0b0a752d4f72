"""`python -m lightning_sdk` is `lsdk`."""

from __future__ import annotations

import sys

from lsdk import main

if __name__ == "__main__":
    sys.exit(main())
