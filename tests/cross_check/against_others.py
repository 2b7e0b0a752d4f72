"""Our baselines and credits against other people's code, on the same random data. Run by `nox -s cross_check`.

verl 0.9.1, OpenRLHF 0.11.2, Trinity-RFT 0.6.0 and SkyRL 0.3.0 are installed without their dependencies, which need
CUDA; what is called is their own code. Where groups have more than one rollout and some variance, and each rollout
one call (or state), the definitions agree. Where they do not is stated below, and pinned.
"""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import math
import sys
import types
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from lightning_sdk.mdp import Group
from lightning_sdk.mdp.advantages import Advantages, compute_advantages
from support.credit_groups import call, group, rollout

SEEDS = range(20)


class Batch:
    """Groups of rollouts with one call each, as ours and as padded tensors."""

    def __init__(self, seed: int, *, per_group: int | None = None, groups: int = 4) -> None:
        rng = np.random.default_rng(seed)
        sizes = [per_group or int(rng.integers(2, 7)) for _ in range(groups)]
        self.index = np.repeat(np.arange(groups), sizes)
        self.returns = rng.uniform(0.0, 3.0, len(self.index))
        self.tokens = rng.integers(1, 8, len(self.index))
        self.mask = torch.tensor(np.arange(8)[None, :] < self.tokens[:, None], dtype=torch.float64)
        self.rewards = torch.zeros(len(self.index), 8, dtype=torch.float64)
        self.rewards[torch.arange(len(self.index)), torch.tensor(self.tokens - 1)] = torch.tensor(
            self.returns
        )

    @property
    def groups(self) -> list[Group]:
        return [
            group(
                *(
                    rollout(f"r{at}", call(float(self.returns[at]), tokens=int(self.tokens[at])))
                    for at in np.flatnonzero(self.index == which)
                ),
                group_id=f"g{which}",
            )
            for which in range(self.index.max() + 1)
        ]

    def ours(self, baseline: str, **params: Any) -> np.ndarray[Any, Any]:
        result = compute_advantages(self.groups, baseline=baseline, baseline_params=params)
        assert result.in_loss_C.all()
        return result.advantage_C

    def first_tokens(self, advantages: torch.Tensor) -> np.ndarray[Any, Any]:
        """The advantage of each row; all of its tokens must have it."""
        spread = (advantages - advantages[:, :1]) * self.mask
        assert float(spread.abs().max()) < 1e-5
        return advantages[:, 0].double().numpy()


# --- verl -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def verl() -> Any:
    return importlib.import_module("verl.trainer.ppo.core_algos")


@pytest.mark.parametrize("seed", SEEDS)
def test_group_baselines_agree_with_verl(verl: Any, seed: int) -> None:
    batch = Batch(seed)
    arguments = (batch.rewards, batch.mask, batch.index)
    for name, theirs in {
        "grpo": verl.compute_grpo_outcome_advantage(*arguments),
        "dr_grpo": verl.compute_grpo_outcome_advantage(*arguments, norm_adv_by_std_in_grpo=False),
        "rloo": verl.compute_rloo_outcome_advantage(*arguments),
    }.items():
        np.testing.assert_allclose(batch.ours(name), batch.first_tokens(theirs[0]), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_whitening_agrees_with_verl(verl: Any, seed: int) -> None:
    batch = Batch(seed)
    # verl adds 1e-8 to the number of tokens: hence the tolerance.
    theirs = verl.compute_reinforce_plus_plus_outcome_advantage(
        batch.rewards, batch.mask, config=SimpleNamespace(gamma=1.0)
    )[0]
    np.testing.assert_allclose(batch.ours("reinforce++"), batch.first_tokens(theirs), rtol=1e-7, atol=1e-8)
    theirs = verl.compute_reinforce_plus_plus_baseline_outcome_advantage(
        batch.rewards, batch.mask, batch.index
    )[0]
    ours = batch.ours("reinforce++_baseline")
    np.testing.assert_allclose(ours, batch.first_tokens(theirs), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("seed", SEEDS)
def test_turn_gae_agrees_with_verls_gae_that_skips_observations(verl: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    gamma, lam = 0.9, 0.8
    turns = rng.integers(1, 5, 6)
    rewards, values = torch.zeros(6, 12, dtype=torch.float64), torch.tensor(rng.normal(size=(6, 12)))
    mask = torch.zeros(6, 12, dtype=torch.float64)
    episodes, ours_values = [], {}
    for row in range(6):
        # A turn is one token, and observations of any length lie between.
        places = np.sort(rng.choice(12, turns[row], replace=False))
        mask[row, places] = 1
        drawn = rng.normal(size=turns[row])
        rewards[row, places] = torch.tensor(drawn)
        episodes.append(rollout(f"r{row}", *(call(float(value), tokens=1) for value in drawn)))
        ours_values.update({f"r{row}.{turn}": float(values[row, place]) for turn, place in enumerate(places)})
    params = {"values": ours_values, "gamma": gamma, "lam": lam}
    whitened, returns = verl.compute_gae_advantage_return(rewards, values, mask, gamma, lam)
    acted = mask.bool()
    ours = compute_advantages([group(*episodes)], credit="turn_gae", credit_params=params)
    np.testing.assert_allclose(ours.advantage_C, (returns - values)[acted].numpy(), rtol=1e-9, atol=1e-12)
    ours = compute_advantages(
        [group(*episodes)], credit="turn_gae", credit_params=params, baseline="reinforce++"
    )
    np.testing.assert_allclose(ours.advantage_C, whitened[acted].numpy(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("seed", SEEDS)
def test_discounted_agrees_with_verls_returns_that_skip_observations(verl: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rewards, mask = torch.zeros(6, 12, dtype=torch.float64), torch.zeros(6, 12, dtype=torch.float64)
    episodes = []
    for row in range(6):
        # A turn is one token, and observations of any length lie between.
        places = np.sort(rng.choice(12, rng.integers(1, 5), replace=False))
        drawn = rng.normal(size=len(places))
        mask[row, places] = 1
        rewards[row, places] = torch.tensor(drawn)
        episodes.append(rollout(f"r{row}", *(call(float(value), tokens=1) for value in drawn)))
    _, returns = verl.compute_reinforce_plus_plus_outcome_advantage(
        rewards, mask, config=SimpleNamespace(gamma=0.9)
    )
    ours = compute_advantages(
        [group(*episodes)], credit="discounted", credit_params={"gamma": 0.9}, baseline="none"
    )
    np.testing.assert_allclose(ours.credit_C, returns[mask.bool()].numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_dr_mas_agrees_with_verls_grpo_by_task_and_agent(verl: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    agents = ("solver", "critic", "writer")
    groups, rewards, index = [], [], []
    for which in range(4):
        episodes = []
        for run in range(int(rng.integers(2, 6))):
            # Of each agent one call, on a scale of its own.
            drawn = rng.normal(size=3) * (1.0, 10.0, 0.1)
            episodes.append(
                rollout(
                    f"{which}.{run}",
                    *(call(float(value), agent) for value, agent in zip(drawn, agents, strict=True)),
                )
            )
            rewards += drawn.tolist()
            index += [3 * which + agent for agent in range(3)]
        groups.append(group(*episodes, group_id=f"g{which}"))
    theirs = verl.compute_grpo_outcome_advantage(
        torch.tensor(rewards, dtype=torch.float64)[:, None],
        torch.ones(len(rewards), 1, dtype=torch.float64),
        np.array(index),
    )[0]
    ours = compute_advantages(groups, credit="per_call", baseline="dr_mas")
    np.testing.assert_allclose(ours.advantage_C, theirs[:, 0].numpy(), rtol=1e-9, atol=1e-12)


def test_a_group_of_one_is_where_we_differ_from_verl(verl: Any) -> None:
    batch = Batch(0, per_group=1, groups=2)
    theirs = verl.compute_rloo_outcome_advantage(batch.rewards, batch.mask, batch.index)[0]
    np.testing.assert_allclose(batch.first_tokens(theirs), batch.returns)  # the raw reward
    assert compute_advantages(batch.groups).advantage_C.tolist() == [0.0, 0.0]


def test_a_rollout_in_several_rows_is_where_we_differ_from_verl(verl: Any) -> None:
    # Rollout a (return 1) in three rows, b (0) in one: verl's mean is 3/4, ours 1/2.
    rewards = torch.tensor([[1.0], [1.0], [1.0], [0.0]], dtype=torch.float64)
    theirs = verl.compute_grpo_outcome_advantage(
        rewards, torch.ones(4, 1), np.zeros(4, dtype=int), norm_adv_by_std_in_grpo=False
    )[0]
    assert theirs[:, 0].tolist() == [0.25, 0.25, 0.25, -0.75]
    ours = compute_advantages(
        [group(rollout("a", call(), call(), call(1.0)), rollout("b", call(), extra=0.0))], baseline="dr_grpo"
    )
    assert ours.advantage_C.tolist() == [0.5, 0.5, 0.5, -0.5]


# --- OpenRLHF -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def openrlhf() -> Any:
    """Its experience maker, without what its packages import on the way (flash-attn, vLLM)."""
    found = importlib.util.find_spec("openrlhf")
    assert found is not None
    assert found.submodule_search_locations is not None
    site = Path(found.submodule_search_locations[0]).parent
    for name in ("", ".models", ".trainer", ".trainer.ppo_utils", ".trainer.ray", ".utils"):
        package = types.ModuleType(f"openrlhf{name}")
        package.__path__ = [str(site.joinpath(*package.__name__.split(".")))]
        package.__spec__ = importlib.machinery.ModuleSpec(package.__name__, None, is_package=True)
        sys.modules[package.__name__] = package
    launcher = types.ModuleType("openrlhf.trainer.ray.launcher")
    launcher.RayActorGroup = object  # type: ignore[attr-defined]
    sys.modules[launcher.__name__] = launcher
    return importlib.import_module("openrlhf.trainer.ppo_utils.experience_maker")


def of_openrlhf(module: Any, batch: Batch, estimator: str, per_group: int) -> np.ndarray[Any, Any]:
    maker = module.RemoteExperienceMaker.__new__(module.RemoteExperienceMaker)
    maker.advantage_estimator = estimator
    maker.kl_ctl = SimpleNamespace(value=0.0)
    advantage = SimpleNamespace(estimator=estimator, gamma=1.0, lambd=1.0, no_std_norm=False)
    reward = SimpleNamespace(clip_range=None, overlong_buffer_len=None, stop_properly_penalty_coef=None)
    maker.strategy = SimpleNamespace(
        args=SimpleNamespace(
            rollout=SimpleNamespace(n_samples_per_prompt=per_group),
            reward=reward,
            algo=SimpleNamespace(advantage=advantage),
        )
    )
    experience = module.Experience(
        index=list(range(len(batch.index))),
        rewards=torch.tensor(batch.returns),
        action_mask=batch.mask,
        kl=torch.zeros_like(batch.mask),
        info={"reward": torch.tensor(batch.returns)},
    )
    (result,) = maker.compute_advantages_and_returns([experience])
    return batch.first_tokens(result.advantages)


@pytest.mark.parametrize("seed", SEEDS)
def test_group_baselines_agree_with_openrlhf(openrlhf: Any, seed: int) -> None:
    batch = Batch(seed, per_group=4)
    for ours, theirs, params in (
        ("rloo", "rloo", {}),
        ("dr_grpo", "dr_grpo", {}),
        ("grpo", "group_norm", {"epsilon": 1e-9}),
    ):
        found = of_openrlhf(openrlhf, batch, theirs, 4)
        np.testing.assert_allclose(batch.ours(ours, **params), found, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_whitening_agrees_with_openrlhf_but_for_ddof(openrlhf: Any, seed: int) -> None:
    batch = Batch(seed, per_group=4)
    n = int(batch.tokens.sum())  # OpenRLHF divides by n, we and verl by n - 1
    for ours, theirs in (("reinforce++", "reinforce"), ("reinforce++_baseline", "reinforce_baseline")):
        found = of_openrlhf(openrlhf, batch, theirs, 4)
        np.testing.assert_allclose(batch.ours(ours) * math.sqrt(n / (n - 1)), found, rtol=1e-5, atol=1e-6)


# --- SkyRL ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def skyrl_max_rl() -> Any:
    """Its function alone: the module around it does not import on Python 3.11 with today's pydantic."""
    found = importlib.util.find_spec("skyrl")
    assert found is not None
    assert found.submodule_search_locations is not None
    path = Path(found.submodule_search_locations[0], "backends/skyrl_train/utils/ppo_utils.py")
    (function,) = [
        node
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name == "compute_maxrl_advantage"
    ]
    function.decorator_list = []
    names: dict[str, Any] = {"torch": torch, "np": np, "defaultdict": defaultdict}
    exec(compile(ast.Module([function], []), str(path), "exec"), names)
    return names["compute_maxrl_advantage"]


@pytest.mark.parametrize("seed", SEEDS)
def test_max_rl_agrees_with_skyrl(skyrl_max_rl: Any, seed: int) -> None:
    batch = Batch(seed)
    theirs = skyrl_max_rl(batch.rewards, batch.mask, batch.index, epsilon=0.0)[0]
    np.testing.assert_allclose(batch.ours("max_rl"), batch.first_tokens(theirs), rtol=1e-5, atol=1e-6)


# --- Trinity-RFT ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_gigpo_agrees_with_trinity_where_no_rollout_comes_back_to_a_state(seed: int, normalise: bool) -> None:
    algorithm = importlib.import_module("trinity.algorithm.advantage_fn.gigpo_advantage")
    rng = np.random.default_rng(seed)
    groups, theirs = [], []
    for which in range(3):
        episodes = []
        for run in range(4):
            states = rng.permutation(5)[: rng.integers(1, 5)]
            drawn = rng.normal(size=len(states))
            episodes.append(
                rollout(
                    f"{which}.{run}",
                    *(
                        call(float(reward), metadata={"state": int(state)})
                        for reward, state in zip(drawn, states, strict=True)
                    ),
                )
            )
            for step, (reward, state) in enumerate(zip(drawn, states, strict=True)):
                info = {"step_reward": float(reward), "env_state_hash": f"{which}/{state}"}
                theirs.append(an_experience(which, run, step, info=info))
        groups.append(group(*episodes, group_id=f"g{which}"))
    found, _ = algorithm.GiGPOAdvantageFn(gamma=0.9, omega=0.7, fnorm="std" if normalise else "none").process(
        theirs
    )
    params = {
        "state_key": lambda transition: transition.metadata["state"],
        "gamma": 0.9,
        "weight": 0.7,
        "normalise": normalise,
    }
    ours: Advantages = compute_advantages(groups, credit="gigpo", credit_params=params)
    expected = [float(each.advantages.reshape(-1)[0]) for each in found]
    np.testing.assert_allclose(ours.advantage_C, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_broadcast_return_agrees_with_trinitys_multi_step_grpo(seed: int) -> None:
    algorithm = importlib.import_module("trinity.algorithm.advantage_fn.multi_step_grpo_advantage")
    rng = np.random.default_rng(seed)
    groups, theirs = [], []
    for which in range(3):
        episodes = []
        for run in range(4):
            steps = int(rng.integers(1, 5))
            value = float(rng.normal())
            episodes.append(rollout(f"{which}.{run}", *([call()] * (steps - 1)), call(value)))
            theirs += [an_experience(which, run, step, reward=value) for step in range(steps)]
        groups.append(group(*episodes, group_id=f"g{which}"))
    found, _ = algorithm.StepWiseGRPOAdvantageFn().process(theirs)
    ours = compute_advantages(groups, credit="broadcast", baseline="grpo")
    expected = [float(each.advantages.reshape(-1)[0]) for each in found]
    np.testing.assert_allclose(ours.advantage_C, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("history", [0, 1, 2])
@pytest.mark.parametrize("seed", SEEDS)
def test_each_level_of_hgpo_agrees_with_trinitys_gigpo_from_states_with_their_past(
    seed: int, history: int
) -> None:
    # Nobody's package has HGPO. Its levels are step advantages of GiGPO, whose states are the last k + 1 states.
    algorithm = importlib.import_module("trinity.algorithm.advantage_fn.gigpo_advantage")
    rng = np.random.default_rng(seed)
    groups, paths, rewards = [], [], []
    for which in range(3):
        episodes = []
        for run in range(5):
            # From few states, so that several rollouts go the same way; none comes back to a state.
            states = [int(state) for state in rng.permutation(3)[: rng.integers(1, 4)]]
            drawn = rng.normal(size=len(states)).tolist()
            episodes.append(
                rollout(
                    f"{which}.{run}",
                    *(
                        call(value, metadata={"state": state})
                        for value, state in zip(drawn, states, strict=True)
                    ),
                )
            )
            paths += [(which, run, tuple(states[: step + 1])) for step in range(len(states))]
            rewards += drawn
        groups.append(group(*episodes, group_id=f"g{which}"))
    sums, weights = np.zeros(len(paths)), np.zeros(len(paths))
    for k in range(history + 1):
        names = [f"{which}/{path[-k - 1 :]}" if len(path) > k else None for which, _, path in paths]

        def step_advantages(omega: float, names: list[str | None] = names) -> np.ndarray[Any, Any]:
            experiences = [
                an_experience(
                    which,
                    run,
                    len(path) - 1,
                    info={"step_reward": value, **({} if name is None else {"env_state_hash": name})},
                )
                for (which, run, path), value, name in zip(paths, rewards, names, strict=True)
            ]
            found, _ = algorithm.GiGPOAdvantageFn(gamma=0.9, omega=omega, fnorm="std").process(experiences)
            return np.array([float(each.advantages.reshape(-1)[0]) for each in found])

        tells = np.array([name is not None and names.count(name) > 1 for name in names])
        weight = float(k + 1) ** 1.5
        sums += np.where(tells, weight * (step_advantages(1.0) - step_advantages(0.0)), 0.0)
        weights += np.where(tells, weight, 0.0)
    expected = np.divide(sums, weights, out=np.zeros_like(sums), where=weights > 0)
    params = {
        "state_key": lambda transition: transition.metadata["state"],
        "history": history,
        "alpha": 1.5,
        "gamma": 0.9,
        "ddof": 1,
    }
    ours = compute_advantages(groups, credit="hgpo", credit_params=params)
    np.testing.assert_allclose(ours.credit_C, expected, rtol=1e-4, atol=1e-4)


def an_experience(task: int, run: int, step: int, **fields: Any) -> Any:
    """One step of a run as Trinity has it: two sampled tokens after one."""
    experience = importlib.import_module("trinity.common.experience")
    return experience.Experience(
        eid=experience.EID(batch=0, task=task, run=run, step=step),
        tokens=torch.zeros(3, dtype=torch.int32),
        prompt_length=1,
        **fields,
    )
