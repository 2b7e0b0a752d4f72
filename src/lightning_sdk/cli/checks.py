"""What `lsdk doctor` looks at. No installation can make these functions raise."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Final, Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from lightning_sdk.cli import wording
from lightning_sdk.cli.reading import Source
from lightning_sdk.cli.spool_state import inspect_spool
from lightning_sdk.client.integrations import status
from lightning_sdk.errors import LightningError
from lightning_sdk.version import DISTRIBUTION, version

# "note" is worth knowing, "broken" makes the exit code 1, "skipped" could not be looked at.
State = Literal["ok", "note", "broken", "skipped"]

# The other product whose import package has our name.
OTHER_PRODUCT: Final = "lightning-sdk"

_INTERESTING: Final = (
    "protobuf",
    "grpcio",
    "wrapt",
    "opentelemetry-api",
    "openai",
    "torch",
    "transformers",
    "vllm",
    "openrlhf",
)


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    section: str
    name: str
    state: State
    detail: str


def versions() -> Iterator[Check]:
    """Versions of Python, of this package and of what it works with."""
    yield Check("versions", "python", "ok", platform.python_version())
    yield Check("versions", DISTRIBUTION, "ok", version())
    wanted = {canonicalize_name(each.name): each for each in _requirements("")}
    for name in _INTERESTING:
        found = _installed(name)
        requirement = wanted.get(canonicalize_name(name))
        if found is None:
            state: State = "note" if requirement is None else "broken"
            yield Check("versions", name, state, "not installed")
        elif requirement is not None and not _satisfies(requirement, found):
            yield Check(
                "versions", name, "broken", f"{found}, but {DISTRIBUTION} needs {requirement.specifier}"
            )
        else:
            yield Check("versions", name, "ok", found)


def extras() -> Iterator[Check]:
    """Which extras are installed, or what each lacks."""
    try:
        names = metadata.metadata(DISTRIBUTION).get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:
        yield Check("extras", "all", "skipped", f"{DISTRIBUTION} runs from a folder that was never installed")
        return
    for extra in names:
        lacking = [
            f"{each.name}{each.specifier}"
            for each in _requirements(extra)
            if (found := _installed(each.name)) is None or not _satisfies(each, found)
        ]
        if lacking:
            yield Check("extras", extra, "note", f"not installed: lacks {', '.join(lacking)}")
        else:
            yield Check("extras", extra, "ok", "installed")


def other_product() -> Iterator[Check]:
    """Whether the distribution that claims our import name is there too."""
    found = _installed(OTHER_PRODUCT)
    if found is not None:
        yield Check(
            "versions",
            OTHER_PRODUCT,
            "broken",
            f"{found} is installed too: another product with the same import name, lightning_sdk: each "
            f"overwrites the other; uninstall it and reinstall {DISTRIBUTION}",
        )


def integrations() -> Iterator[Check]:
    """Each integration: its target's version against the tested range, and whether it installs."""
    states: dict[str, State] = {"installed": "ok", "failed": "broken", "absent": "note", "untested": "note"}
    for each in status():
        installed = f"{each.distribution} {each.installed_version or 'not installed'}"
        yield Check(
            "integrations",
            each.name,
            states.get(each.state, "note"),
            f"{installed}: {each.detail or each.state}; tested with {each.versions}",
        )


def state(source: Source) -> Iterator[Check]:
    """Spool, store and collector."""
    try:
        spool = inspect_spool(source.home.spool)
    except LightningError as error:
        yield Check("state", "spool", "broken", str(error))
    else:
        records = wording.count(sum(spool.records.values()), "record")
        segments = wording.count(sum(spool.segments.values()), "segment")
        yield Check("state", "spool", "ok", f"{records} in {segments} of {source.home.spool}")
        for name, damage in spool.damaged.items():
            yield Check("state", f"segment {name}", "note", f"damaged: {damage}")
    name = "collector" if source.endpoint else "store"
    try:
        with source.reader() as reader:
            stats = reader.stats()
    except LightningError as error:
        yield Check("state", name, "broken", str(error))
        return
    counters = stats.counters
    yield Check("state", name, "ok", f"{stats.store}: {wording.tally(dict(counters))}")
    for counter in ("integrity_errors", "tombstones"):
        if counters.get(counter):
            yield Check(
                "state", counter, "note", f"{counters[counter]:,}: records arrived damaged or were lost"
            )


def _requirements(extra: str, seen: frozenset[str] = frozenset()) -> Iterator[Requirement]:
    """What the extra (or, for "", the base install) needs, extras within extras resolved."""
    try:
        lines = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return
    for line in lines:
        requirement = Requirement(line)
        marker = requirement.marker
        if bool(extra) == (marker is None or marker.evaluate({"extra": ""})):
            continue
        if marker is not None and not marker.evaluate({"extra": extra}):
            continue
        if canonicalize_name(requirement.name) != DISTRIBUTION:
            yield requirement
            continue
        for nested in sorted(requirement.extras - seen):
            yield from _requirements(nested, seen | {extra, nested})


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _satisfies(requirement: Requirement, found: str) -> bool:
    return requirement.specifier.contains(Version(found), prereleases=True)
