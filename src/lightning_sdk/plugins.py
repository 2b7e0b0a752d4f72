"""What others may plug in: backends and integrations, and how they are found.

Ours are registered exactly as a stranger's would be, by entry points:

    [project.entry-points."lightning_sdk.backends"]
    parquet = "my_package.parquet:ParquetBackend"

    [project.entry-points."lightning_sdk.integrations"]
    mistral = "my_package.mistral:MistralIntegration"
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Protocol, runtime_checkable
from urllib.parse import quote

from lightning_sdk.errors import PluginError

if TYPE_CHECKING:
    from lightning_sdk.mdp import Group
    from lightning_sdk.records import OutcomeName

BACKENDS = "lightning_sdk.backends"
INTEGRATIONS = "lightning_sdk.integrations"

# Request and response header in which a client and our policy endpoint agree on the call id.
CALL_ID_HEADER = "x-lightning-call-id"
# What either takes from the other as a call id: bytes from outside.
CALL_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
# What a call that a client routes to our policy endpoint says of itself, beside its call id. POLICY names the
# policy that answers (absent: the endpoint's default), SPLIT the rollout's split, AGENT who calls (always there,
# maybe empty). Percent-encoded where they are not visible ASCII.
POLICY_HEADER = "x-lightning-policy"
SPLIT_HEADER = "x-lightning-split"
ROLLOUT_HEADER = "x-lightning-rollout"
AGENT_HEADER = "x-lightning-agent"
# Splits whose calls the endpoint samples as the policy is trained: rollouts to learn from, and held-out ones that
# shall be sampled alike. Those of any other split keep the agent's own sampling.
TRAINING_SPLIT = "train"
VALIDATION_AS_TRAINED_SPLIT = "validation-as-trained"
SPLITS_SAMPLED_AS_TRAINED = frozenset({TRAINING_SPLIT, VALIDATION_AS_TRAINED_SPLIT})

# Visible ASCII but for "%": stands for itself in a header.
_PLAIN: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) != "%")

Undo = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Where the model calls of an agent go, instead of where its code sends them: to the policy endpoint."""

    # Base URL of the endpoint, such as http://127.0.0.1:8000/v1.
    endpoint: str
    # What the endpoint asks for; None: nothing.
    token: str | None = field(repr=False)
    # None: the endpoint's default.
    policy: str | None
    split: str | None
    rollout_id: str
    agent: str

    def url(self, path: str) -> str:
        """Where a request goes; `path` is the API's, below the version, such as "chat/completions"."""
        return f"{self.endpoint.rstrip('/')}/{path}"

    def headers(self, call_id: str | None) -> dict[str, str]:
        """All headers of the request but those that tell of its body: nothing of the agent's is among them.

        Args:
            call_id: that of the recording.
        """
        said = {
            CALL_ID_HEADER: call_id,
            POLICY_HEADER: self.policy,
            SPLIT_HEADER: self.split,
            ROLLOUT_HEADER: self.rollout_id,
            AGENT_HEADER: self.agent,
        }
        headers = {name: quote(value, safe=_PLAIN) for name, value in said.items() if value is not None}
        if self.token is not None:
            headers["authorization"] = f"Bearer {self.token}"
        return headers


class CallRecording(Protocol):
    """One model call while it lasts. Each method may be called from any thread, and none raises an error of
    its own: only what a signal handler of the agent raised in the middle of it comes out.

    An integration calls `sent` once for each HTTP attempt, then `answered`, then `received` or any number
    of `event`s, and at the very end `finish`: the first `finish` counts, later ones do nothing.
    """

    @property
    def call_id(self) -> str:
        """The id of this call, made when it started."""

    def headers(self, url: str) -> Mapping[str, str]:
        """Headers to add to the request on the wire: none, unless `url` is our own policy endpoint."""

    def sent(self, body: bytes) -> None:
        """An HTTP attempt with exactly this body is about to be made."""

    def answered(self, status: int, headers: Mapping[str, str]) -> None:
        """Status and headers of the response have arrived; a mapping that is no dict must ignore case."""

    def received(self, body: bytes) -> None:
        """The whole body of a response that is no stream."""

    def event(self, data: str | bytes) -> None:
        """The data of one server-sent event."""

    def finish(self, outcome: OutcomeName, error: BaseException | None = None) -> None:
        """The call is over and is written now.

        A garbage collection may call it (a stream was dropped), in the middle of whatever this thread does:
        it must not wait for a lock that the same thread may hold.
        """


class Recorder(Protocol):
    """What an integration reports to."""

    def start_call(self, *, integration: str, api: str, url: str, streamed: bool) -> CallRecording | None:
        """A model call starts in this context.

        Args:
            integration: name of the integration.
            api: shape of request and response, such as "chat.completions".
            url: where it goes; user information, query and fragment are left out of the record.
            streamed: whether the response will come as server-sent events.

        Returns:
            Its recording; None where nothing is to be recorded (outside any rollout): pass the call through.
        """

    def route(self) -> Route | None:
        """Where the model calls of the present agent have to go; None: where the agent's code sends them.

        An integration asks before each call. With a route it sends the request there, with the headers of the
        route and none of the agent's, or raises RoutingError in the agent's code: no call of a routed agent
        reaches another model.

        Raises:
            RoutingError: it cannot be told.
        """

    def fault(self, place: str, error: Exception) -> None:
        """An error of the integration's own, which the agent must not see: counted, and logged once a place.

        Call it for every exception that would be swallowed: what a signal handler of the agent raised in the
        middle of an integration (a deadline) is the agent's, and is raised again.

        Raises:
            Exception: `error`, if it is the agent's; any, with ``LIGHTNING_STRICT=1``, which is for tests.
        """


@runtime_checkable
class Integration(Protocol):
    """Patches one library. Made without arguments; imports its target only inside `install`."""

    name: ClassVar[str]
    # The module whose import triggers `install`, and the distribution it comes from.
    target: ClassVar[str]
    distribution: ClassVar[str]
    # The versions it was tested with (PEP 440), for `lsdk doctor`.
    versions: ClassVar[str]

    def install(self, recorder: Recorder) -> Undo:
        """Patch the target, which is imported. The result takes the patches off again, where they are still ours.

        Raises:
            PluginError: the library does not have what the patches need; nothing was changed.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a backend did."""

    # Files it wrote, by what they are.
    outputs: Mapping[str, Path] = field(default_factory=dict)
    # Numbers to show: counts of an exporter, metrics of a trainer.
    metrics: Mapping[str, float] = field(default_factory=dict)
    # Why transitions were left out, each with how many.
    dropped: Mapping[str, int] = field(default_factory=dict)
    # The policy version that a trainer published.
    policy_version: int | None = None


@runtime_checkable
class Backend(Protocol):
    """Consumes episodes: an exporter or a trainer. Made with its options as keyword arguments."""

    # What it can use: "engine" needs the engine's token ids, "text" does not.
    fidelity: ClassVar[Literal["engine", "text"]]
    # "offline" takes what is stored; "online" takes rollouts of the policy that it trains.
    mode: ClassVar[Literal["offline", "online"]]
    summary: ClassVar[str]

    @classmethod
    def missing(cls) -> str | None:
        """What to install before it works, as one sentence; None when it is usable."""

    def consume(self, groups: Iterable[Group]) -> Report:
        """Take all groups, in order.

        Raises:
            LightningError: it cannot be done. Nothing half-written stays.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What whoever publishes weights expects of them, so that weights which arrived wrong are found at once.

    `logprobs[i]` are the natural logarithms of the probabilities of `token_ids[i][1:]` at temperature 1, each
    after the tokens before it.
    """

    token_ids: Sequence[Sequence[int]]
    logprobs: Sequence[Sequence[float]]
    # The largest difference of one log probability that is no error.
    tolerance: float = 1e-2


class Publisher(Protocol):
    """Where a trainer puts new weights: the policy endpoint that the agents of the run talk to."""

    def publish(self, policy: str, weights: Path, *, version: int, probe: Probe | None = None) -> None:
        """Swap the weights of a policy; when it returns, every call that starts is sampled by them.

        Args:
            policy: its name.
            weights: a directory in the format of Hugging Face, with safetensors; it may be deleted afterwards.
            version: larger than the one before, save that the present version may be published again (a resume).
            probe: compared with what the endpoint computes from the new weights.

        Raises:
            PublishError: the weights do not fit, or the probe differs; the endpoint serves the old ones.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """What the training loop gives a trainer when it opens."""

    run_id: str
    # Of this run; the trainer may write below `directory / "trainer"`.
    directory: Path
    # Name of each policy that is trained to the directory of the model that it starts from.
    policies: Mapping[str, Path]
    # The temperature at which training rollouts are sampled.
    temperature: float
    # The most tokens of prompt and response together.
    max_tokens: int | None
    seed: int
    # None for a trainer that serves its policies itself.
    publisher: Publisher | None
    # How many published versions older than the policy the oldest call may be that a round trains on. The loop starts
    # rollouts so that none is older; a group that is all the same is dropped whole (`Selection.min_policy_version`).
    # None: there is no bound.
    max_age: int | None = None


@runtime_checkable
class Trainer(Backend, Protocol):
    """A backend that trains policies: `mode` is "online", and the training loop drives it.

    `open`, then `restore` where the run is resumed, then a round of `consume` for each batch of groups, with
    `save` in between, and `close` at the end, also after an error.
    """

    # Whether it answers the agents' calls itself (`endpoint`). Else the loop runs an endpoint and gives its
    # publisher, and the model directories of `TrainingRun.policies` are what that endpoint starts with.
    serves: ClassVar[bool]

    def open(self, run: TrainingRun) -> None:
        """Load models and whatever else it needs.

        Raises:
            LightningError: it cannot be done; the message says what to change.
        """

    @property
    def endpoint(self) -> str | None:
        """Base URL of the policy endpoint that it serves; None where `serves` is false."""

    def consume(self, groups: Iterable[Group]) -> Report:
        """Learn from a batch of groups and publish what came out.

        The report has the metrics of the round, why transitions were left out, and the new policy version. Where
        nothing could be trained on, nothing is published, the version stays, and `metrics["tokens_trained"]` is 0.
        """

    def save(self, directory: Path) -> None:
        """Write all that the next round depends on (weights, optimiser, random state, version) into a directory
        that exists and is empty.
        """

    def restore(self, directory: Path) -> None:
        """Go on from what `save` wrote: the next round gives the same weights as without the break, and what it
        restored is published again.
        """

    def export(self, directory: Path) -> Mapping[str, Path]:
        """Write the models as they are now for others to use: by policy, a Hugging Face directory each."""

    def close(self) -> None:
        """Let go of all that `open` took."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """An entry point that was found. `load` imports it, and nothing else is imported before."""

    group: str
    name: str
    value: str
    distribution: str
    _entry_point: metadata.EntryPoint = field(repr=False, compare=False)

    def load(self) -> Any:
        """Import it.

        Raises:
            PluginError: the import failed; the message names plugin, distribution and cause.
        """
        try:
            return self._entry_point.load()
        except Exception as error:
            raise PluginError(
                f"{self.name!r} ({self.value}, from {self.distribution}) does not load: "
                f"{type(error).__name__}: {error}"
            ) from error


def discover(group: str) -> Sequence[Plugin]:
    """All plugins of a group, by name. Imports none of them."""
    found = [
        Plugin(group, point.name, point.value, point.dist.name if point.dist else "unknown", point)
        for point in metadata.entry_points(group=group)
    ]
    return sorted(set(found), key=lambda plugin: (plugin.name, plugin.distribution))


def find(group: str, name: str) -> Plugin:
    """The plugin called `name`. Imports no other.

    Raises:
        PluginError: there is none (the message lists what there is), or two distributions claim the name.
    """
    plugins = discover(group)
    matches = [plugin for plugin in plugins if plugin.name == name]
    kind = group.rpartition(".")[2].rstrip("s")
    if not matches:
        names = sorted({plugin.name for plugin in plugins})
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise PluginError(f"no {kind} is called {name!r}: {hint}installed are {', '.join(names) or 'none'}")
    if len(matches) > 1:
        owners = " and ".join(plugin.distribution for plugin in matches)
        raise PluginError(f"{kind} {name!r} comes from {owners}: uninstall one of them")
    return matches[0]
