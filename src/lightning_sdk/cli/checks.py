"""What `lsdk doctor` looks at. No installation can make these functions raise."""

from __future__ import annotations

import importlib
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Final, Literal

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from lightning_sdk import testing
from lightning_sdk._proto.read_pb2 import Stats
from lightning_sdk.cli import wording
from lightning_sdk.cli.client_counters import ERROR_PREFIX, client_counters
from lightning_sdk.cli.reading import Source
from lightning_sdk.cli.spool_state import inspect_spool, waiting
from lightning_sdk.client.faults import counters
from lightning_sdk.client.integrations import IntegrationStatus, status
from lightning_sdk.collector.address import read_announcement
from lightning_sdk.collector.store.ownership import owner_pid
from lightning_sdk.errors import LightningError
from lightning_sdk.home import Home
from lightning_sdk.version import DISTRIBUTION, version

# "absent": not installed, which may be meant; "warning": wants a look; "broken": the exit code is 1.
State = Literal["ok", "absent", "warning", "broken"]

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
            state: State = "absent" if requirement is None else "broken"
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
        yield Check("extras", "all", "absent", f"{DISTRIBUTION} runs from a folder that was never installed")
        return
    for extra in names:
        lacking = [
            f"{each.name}{each.specifier}"
            for each in _requirements(extra)
            if (found := _installed(each.name)) is None or not _satisfies(each, found)
        ]
        if lacking:
            yield Check("extras", extra, "absent", f"not installed: lacks {', '.join(lacking)}")
        else:
            yield Check("extras", extra, "ok", "installed")


def other_product() -> Iterator[Check]:
    """Whether the distribution that claims our import name is there too."""
    found = _installed(OTHER_PRODUCT)
    if found is not None:
        yield Check(
            "versions",
            OTHER_PRODUCT,
            "warning",
            f"{found} is installed too: another product with the same import name lightning_sdk, so that "
            f"each overwrites files of the other; uninstall it and reinstall {DISTRIBUTION}",
        )


def integrations() -> Iterator[Check]:
    """Each integration: its library's version against the tested range, and whether it installs."""
    try:
        with testing.capture():
            for each in status():
                if each.installed_version is not None:
                    importlib.import_module(each.target)
            found = status()
    except Exception as error:  # whatever the installed versions do together is the finding
        yield Check("integrations", "all", "broken", f"{type(error).__name__}: {error}")
        return
    for each in found:
        yield Check("integrations", each.name, *_integration_state(each))


def _integration_state(each: IntegrationStatus) -> tuple[State, str]:
    library = f"{each.distribution} {each.installed_version}"
    if each.state == "absent":
        return "absent", f"{each.distribution} is not installed (tested with {each.versions})"
    if each.state != "installed":
        return "broken", f"{library}: {each.detail or each.state}"
    if not SpecifierSet(each.versions).contains(each.installed_version or "", prereleases=True):
        return "warning", f"{library} can be patched, but is outside the tested versions {each.versions}"
    return "ok", f"{library} can be patched (tested with {each.versions})"


def state(source: Source) -> Iterator[Check]:
    """Collector or store, and spool."""
    name = "collector" if source.endpoint else "store"
    try:
        with source.reader() as reader:
            stats = reader.stats()
    except LightningError as error:
        yield Check("state", name, "broken", str(error))
    else:
        yield Check("state", name, "ok", f"{source.endpoint or stats.store}: {_counters(stats)}")
        yield from _clients(client_counters(stats), "clients")
        for counter in ("integrity_errors", "tombstones"):
            if stats.counters.get(counter):
                detail = f"{stats.counters[counter]:,}: records arrived damaged or were lost"
                yield Check("state", counter, "warning", detail)
    if not source.endpoint:
        yield _local_collector(source.home)
    yield from _spool(source.home)


def _counters(stats: Stats) -> str:
    return wording.tally({name: stats.counters.get(name, 0) for name in ("records", "rollouts", "producers")})


def this_process() -> Iterator[Check]:
    """What went wrong inside the client while the other checks ran it here."""
    yield from _clients(counters(), "this process")


def _clients(counted: Mapping[str, int], name: str) -> Iterator[Check]:
    """What clients counted: errors of ours want a look, what they left out is only told."""
    if not any(counted.values()):
        return
    told = wording.tally(counted)
    if any(each.startswith(ERROR_PREFIX) for each in counted):
        told += (
            f"; {ERROR_PREFIX}… are errors inside lightning_sdk, which harmed no program: the log says more"
        )
        yield Check("state", name, "warning", told)
    else:
        yield Check("state", name, "ok", told)


def _local_collector(home: Home) -> Check:
    announced = read_announcement(home.collector)
    if announced is not None and announced.pid == owner_pid(home.store):
        return Check("state", "collector", "ok", f"runs at {announced.address}, process {announced.pid}")
    return Check("state", "collector", "absent", "none runs here, and none is needed")


def _spool(home: Home) -> Iterator[Check]:
    try:
        spool = inspect_spool(home.spool)
    except LightningError as error:
        yield Check("state", "spool", "broken", str(error))
        return
    records = wording.count(sum(spool.records.values()), "record")
    segments = wording.count(sum(spool.segments.values()), "segment")
    yield Check("state", "spool", "ok", f"{home.spool}: {records} in {segments}")
    for sentence in waiting(spool, home):
        yield Check("state", "waiting", "warning", sentence)
    for name, damage in spool.damaged.items():
        yield Check("state", "damaged", "warning", f"{name}: {damage}")


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
