"""Entry point of the `lsdk` command.

It stands outside the package on purpose: another product, `lightning-sdk`, installs an import package of the
same name, and whichever of the two was installed last has overwritten files of the other. So before anything
is imported from `lightning_sdk`, this module looks whether it is ours.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import util
from pathlib import Path

_MARK = 'DISTRIBUTION = "agent-lightning-sdk"'

# What the command line imports of each distribution in the [server] extra.
SERVER_MODULES = {
    "aiohttp": "aiohttp",
    "click": "click",
    "numpy": "numpy",
    "opentelemetry-proto": "opentelemetry.proto",
    "orjson": "orjson",
    "packaging": "packaging",
    "prometheus-client": "prometheus_client",
    "pydantic": "pydantic",
    "rich": "rich",
    "starlette": "starlette",
    "uvicorn": "uvicorn",
}
if sys.version_info < (3, 11):
    SERVER_MODULES["tomli"] = "tomli"


def main() -> int:
    """Run `lsdk` with the arguments of the process; the result is its exit code."""
    problem = foreign_package() or missing_extra()
    if problem is not None:
        sys.stderr.write(f"lsdk: {problem}\n")
        return 2
    try:
        from lightning_sdk.cli.main import main as run

        return run()
    except KeyboardInterrupt:  # before or after the command itself, which ends quietly by itself
        return 130


def foreign_package() -> str | None:
    """Why the installed `lightning_sdk` is not ours, with the mend; None when it is. Does not import it."""
    if _is_ours():
        return None
    return (
        "the installed package lightning_sdk is not that of agent-lightning-sdk: another product, the "
        "distribution lightning-sdk, uses the same name and has replaced files; run "
        "`pip uninstall -y lightning-sdk` and then "
        "`pip install --force-reinstall --no-deps agent-lightning-sdk`"
    )


def missing_extra() -> str | None:
    """Which libraries of the [server] extra are not installed, with the mend; None when all are there."""
    missing = sorted(name for name, module in SERVER_MODULES.items() if not _exists(module))
    if not missing:
        return None
    return (
        f"the command line needs {', '.join(missing)}, which the base install leaves out: "
        "run `pip install 'agent-lightning-sdk[server]'`"
    )


def _is_ours() -> bool:
    spec = util.find_spec("lightning_sdk")
    if spec is None or spec.origin is None:
        # Nothing, or a folder without __init__.py: what stays when either product was uninstalled.
        return False
    folder = Path(spec.origin).parent
    # A merged folder may still hold our version.py beside their __init__.py, so both are read.
    return _contains(folder / "version.py", [_MARK]) and _contains(folder / "__init__.py", ["trace_agent"])


def _contains(path: Path, words: Iterable[str]) -> bool:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    return all(word in text for word in words)


def _exists(module: str) -> bool:
    try:
        return util.find_spec(module) is not None
    except ModuleNotFoundError:  # its parent is missing
        return False


if __name__ == "__main__":
    sys.exit(main())
