"""Every setting of a training run: a class a table of the TOML file, a field a key, with default and meaning.

docs/training.md tells the same; a test holds the two together.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr

_Count = Annotated[StrictInt, Field(ge=1)]
_CountOrNone = Annotated[StrictInt, Field(ge=0)]
_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_SecondsOrNone = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Finite = Annotated[float, Field(allow_inf_nan=False)]

# The policy's name where a run trains one and nobody named it.
ONE_POLICY = "policy"


class Table(BaseModel):
    """A table of the file: unknown keys are refused, and nothing changes afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class RunTable(Table):
    """`[run]`: what is run, and what is kept of it."""

    agent: StrictStr | None = Field(None, description="The agent's function, as module:function.")
    tasks: StrictStr | None = Field(
        None, description="Training tasks: a JSONL or Parquet file, or a data set."
    )
    project: StrictStr = Field("default", description="Name to keep apart what belongs apart.")
    seed: StrictInt = Field(0, description="Of the order of tasks, of rollouts and of the trainer.")
    checkpoint_every: _Count = Field(10, description="Rounds from one checkpoint to the next.")
    keep_checkpoints: _Count = Field(2, description="Checkpoints that stay, the latest ones.")


class RolloutsTable(Table):
    """`[rollouts]`: how the agent is run."""

    kind: StrictStr = Field(
        "processes", description="Where they run: processes, threads, async, ray or remote (`lsdk work`)."
    )
    workers: _Count = Field(
        8, description="Rollouts that run at once; of the kind remote, its workers say that."
    )
    ray_address: StrictStr | None = Field(
        None, description="Cluster for the kind ray; default: one of its own."
    )
    timeout_s: _SecondsOrNone | None = Field(
        None,
        description="Seconds that a rollout may take, then it is truncated; 0: any time. Default: 600, and any time "
        "for kinds that cannot keep a timeout.",
    )
    attempts: _Count = Field(2, description="Attempts that a rollout has, where its worker died.")
    arrival_timeout_s: _Seconds = Field(
        30.0,
        description="Seconds that records may take to the collector, after a group's last rollout ended.",
    )


class LearningTable(Table):
    """`[learning]`: the rounds."""

    rounds: _Count = Field(100, description="Rounds at most.")
    tasks_per_round: _Count | None = Field(
        None, description="Groups in a round; default: 16, or all tasks if fewer."
    )
    rollouts_per_task: _Count = Field(8, description="Rollouts in a group.")
    shuffle: StrictBool = Field(True, description="Draw tasks in another order in each pass over them.")
    temperature: Annotated[float, Field(gt=0, le=10)] = Field(
        1.0, description="At which training rollouts are sampled, whatever the agent asks for."
    )
    max_tokens: _Count | None = Field(
        None, description="Calls with more tokens of prompt and response are not trained."
    )
    max_age: _CountOrNone = Field(
        0,
        description="Rounds that sampling may run ahead of training. 0: sample, then train. "
        "1 or more: both at once, and a token is at most that many updates old.",
    )
    max_idle_rounds: _Count = Field(
        3, description="Rounds in a row without anything to train on, after which the run stops."
    )


class BackendTable(BaseModel):
    """`[backend]`: who learns. All keys but `name` are the backend's own options."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: StrictStr = Field("torch_rl", description="The backend; `lsdk backends` lists them.")

    @property
    def options(self) -> dict[str, Any]:
        """The backend's own."""
        return dict(self.model_extra or {})


class ValidationTable(Table):
    """`[validation]`: held-out tasks, and when they say that it is enough."""

    tasks: StrictStr | None = Field(None, description="Held-out tasks; without them nothing is validated.")
    every: _Count = Field(
        5, description="Rounds from one validation to the next; also before the first round."
    )
    rollouts_per_task: _Count = Field(1, description="Rollouts of each held-out task.")
    sampling: Literal["agent", "training"] = Field(
        "agent", description="As the agent asks for, or as training rollouts are sampled."
    )
    target: _Finite | None = Field(None, description="Mean reward at which the run stops.")
    keep_best: StrictBool = Field(
        True, description="Write the models of the best validation to `best/` of the run."
    )
    patience: _Count | None = Field(
        None, description="Validations in a row without a new best, after which the run stops."
    )


class ServicesTable(Table):
    """`[services]`: collector and policy endpoint, started for the run or given."""

    endpoint: StrictStr | None = Field(None, description="A collector that runs, as grpc://host:port.")
    policy_endpoint: StrictStr | None = Field(
        None,
        description="A policy endpoint that runs, as http://host:port/v1, and serves the policies by name.",
    )
    weights_dir: Path | None = Field(
        None, description="The weights directory of a given policy endpoint, as this machine sees it."
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="Where the started endpoint computes.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field("auto", description="Of its weights.")
    threads: _Count | None = Field(None, description="Its CPU threads.")
    max_batch: _Count = Field(32, description="Answers that it samples at once.")
    restarts: _CountOrNone = Field(5, description="Times that a started service which died is started again.")
    start_timeout_s: _Seconds = Field(180.0, description="Seconds that a service may take to start.")


class ReportTable(Table):
    """`[report]`: what the run tells, beside metrics.jsonl and the curve."""

    sinks: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = Field(
        (), description="Where metrics go as well; each must be installed."
    )
    samples_every: _Count = Field(10, description="Rounds from one file of rollouts to read to the next.")
    samples: _CountOrNone = Field(4, description="Rollouts in it.")


class Settings(Table):
    """The whole file."""

    run: RunTable = RunTable()  # type: ignore[call-arg]
    policies: dict[str, Path] = Field(
        default_factory=dict, description="Name of each policy that is trained to the directory of its model."
    )
    agents: dict[str, str] = Field(
        default_factory=dict,
        description="Pattern of agent names to the policy that answers them; default: all to the one policy.",
    )
    rollouts: RolloutsTable = RolloutsTable()  # type: ignore[call-arg]
    learning: LearningTable = LearningTable()  # type: ignore[call-arg]
    backend: BackendTable = BackendTable()  # type: ignore[call-arg]
    validation: ValidationTable = ValidationTable()  # type: ignore[call-arg]
    services: ServicesTable = ServicesTable()  # type: ignore[call-arg]
    report: ReportTable = ReportTable()  # type: ignore[call-arg]
    air: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="Rules that give rewards for what was observed (docs/credit.md)."
    )
