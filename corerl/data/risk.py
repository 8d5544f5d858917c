"""`risk/...`: tasks whose returns are spread, for risk-sensitive learning.

    risk/A, B, C                     finite MDPs whose CVaR optima are known (envs/mdps.py)
    risk/coins                       a finite MDP in which all policies have one mean
    risk/inventory, machine, market  three more, of other scales (envs/textbook_mdps.py)
    risk/trap                        a finite MDP that needs lookahead (corerl/risk/effective_horizon.py)
    risk/D1, D2                      their continuous siblings; data: uniform actions
    risk/low-rank, linear-mixture    small finite MDPs for algorithms with regret bounds
    risk/linear-shift                a linear MDP for robust algorithms (envs/linear_shift.py)
    risk/three-arms                  a bandit for learning from comparisons (envs/three_arms.py)
    risk/overheat                    a finite MDP with a cost and a budget (envs/overheat.py)
    risk/one-door                    a finite MDP with a proxy reward (envs/one_door.py)
    risk/coverage, coverage-map      a grid to survey, a submodular return, online (envs/coverage.py)
    risk/pendulum-proxy              Pendulum with a proxy reward, online (envs/proxy_pendulum.py)
    risk/two-groups                  a finite MDP with groups of labellers (envs/two_groups.py)
    risk/three-corners               a plane with cyclic preferences (envs/three_corners.py)
    risk/arbitrage                   statistical arbitrage, online
    risk/pointmass                   CODAC's Risky PointMass; data: mixed controllers
    risk/HalfCheetah-stochastic-v4   O-RAAC's stochastic MuJoCo, online; Hopper, Walker2d alike
    risk/HalfCheetah-velocity-v4     MuJoCo with a cost for going too fast; Hopper, Walker2d alike
    risk/hopper-medium-stochastic-regenerated, -v0, -v2
                                     the same with data: `corerl data make`'s or D4RL's, relabelled

Data that has a seed is that of seed 0.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np

from corerl import seeding
from corerl.data import d4rl, embedded
from corerl.data.dataset import Dataset
from corerl.envs import stochastic_mujoco, velocity_cost
from corerl.envs.stochastic_mujoco import HAZARDS, Hazard
from corerl.errors import CorerlError

SMALL = {
    "A": "mdps:lock_in",
    "B": "mdps:wagers",
    "C": "mdps:hazard",
    "coins": "mdps:coins",
    "inventory": "textbook_mdps:inventory",
    "machine": "textbook_mdps:machine",
    "market": "textbook_mdps:market",
    "trap": "textbook_mdps:trap",
    "coverage": "coverage:Coverage",
    "coverage-map": "coverage:Coverage",
    "D1": "mdps:Gamble",
    "D2": "mdps:Gamble",
    "low-rank": "low_rank:LowRankEnv",
    "linear-mixture": "low_rank:MixtureEnv",
    "linear-shift": "linear_shift:LinearShiftEnv",
    "three-arms": "three_arms:ThreeArmsEnv",
    "overheat": "overheat:OverheatEnv",
    "one-door": "one_door:OneDoorEnv",
    "two-groups": "two_groups:TwoGroupsEnv",
    "pendulum-proxy": "proxy_pendulum:ProxyPendulum",
    "three-corners": "three_corners:ThreeCorners",
    "arbitrage": "statistical_arbitrage:StatisticalArbitrage",
    "pointmass": "risky_pointmass:RiskyPointMass",
    "pointmass-anywhere": "risky_pointmass:RiskyPointMass",  # starts as in training
}
"""Where each is made; imported when asked for, since every command imports this table."""
OPTIONS = {
    "coverage-map": {"shows_map": True},
    "D1": {"steps": 1},
    "D2": {"steps": 2},
    "pointmass": {"evaluation": True},
}
RECIPES = {
    "D1": "mdps:gamble_data",
    "D2": "mdps:gamble_data",
    "pointmass": "risky_pointmass:make",
    "pointmass-anywhere": "risky_pointmass:make",
}
ONLINE = {
    "HalfCheetah-stochastic-v4": "halfcheetah",
    "HalfCheetah-expert-stochastic-v4": "halfcheetah-expert",
    "Hopper-stochastic-v4": "hopper",
    "Walker2d-stochastic-v4": "walker2d",
}
VELOCITY = {name.replace("-v4", "-velocity-v4"): name for name in velocity_cost.LIMITS}
RELABELLED = re.compile(
    r"(halfcheetah|hopper|walker2d)-(medium|expert)-stochastic-(v0|v2|regenerated)"
)
PACKAGED = "halfcheetah-replay-stochastic-regenerated"  # from the set that comes with the package
REFERENCE = {
    "halfcheetah": (-57.95, 659.49),
    "hopper": (-13.37, 1602.04),
    "walker2d": (-17.32, 1790.02),
}
"""Returns of these risky tasks that score 0 and 100 in Moghimi and Ku's AC-SRM code (medium levels)."""


def names() -> list[str]:
    """Lists every task, with data or without."""
    made = [
        f"{body}-{quality}-stochastic-{version}"
        for body in REFERENCE
        for quality in ("medium", "expert")
        for version in ("v0", "v2", "regenerated")
    ]
    return [*SMALL, *ONLINE, *VELOCITY, *made, PACKAGED]


def with_data() -> list[str]:
    return [name for name in names() if name in RECIPES or _source(name)]


def make_env(name: str) -> gymnasium.Env:
    """Makes a new environment of this task."""
    from corerl.data import simulators

    if name in SMALL:
        made = _named(SMALL[name])(**OPTIONS.get(name, {}))
        return made if isinstance(made, gymnasium.Env) else _named("mdps:FiniteEnv")(made)
    if base := VELOCITY.get(name):
        return velocity_cost.VelocityCost(simulators.make(base), velocity_cost.LIMITS[base])
    hazard = _hazard(name)
    env = simulators.make(hazard.environment, max_episode_steps=hazard.steps)
    return stochastic_mujoco.StochasticPenalty(env, hazard)


def load(name: str) -> Dataset:
    """Loads the data, made or relabelled. Raises CorerlError for an online task."""
    id = f"risk/{name}"
    if name in RECIPES:
        steps = {"steps": OPTIONS[name]["steps"]} if name in ("D1", "D2") else {}
        return Dataset.from_steps(id=id, **_named(RECIPES[name])(**steps))
    source = _source(name)
    if source is None:
        raise CorerlError(
            f"{id} is an online task without a dataset. Choose an algorithm that learns "
            "online, such as sac or dqn."
        )
    reader, base = source
    return relabelled(reader.load(base), _hazard(name), id)


def relabelled(dataset: Dataset, hazard: Hazard, id: str) -> Dataset:
    """Returns `dataset` with the penalties that its steps would have met."""
    rewards = dataset.rewards.astype(np.float64)
    if hazard.of_speed:
        measured = rewards + stochastic_mujoco.CONTROL_COST * np.square(
            dataset.actions, dtype=np.float64
        ).sum(-1)
    else:
        measured = dataset.next_observations[:, stochastic_mujoco.ANGLE]
    risky = stochastic_mujoco.is_risky(hazard, measured) & ~dataset.terminated
    rng = np.random.default_rng(seeding.derive(0, "penalties"))
    fires = risky & (rng.random(len(rewards)) < hazard.probability)
    loss = hazard.penalty - measured * hazard.of_speed
    return replace(
        dataset, id=id, rewards=np.where(fires, rewards + loss, rewards).astype(np.float32)
    )


def find(name: str) -> Path | None:
    """Finds the file that the data is made from, where it is on this machine."""
    source = _source(name)
    return source[0].find(source[1]) if source else None


def reference(name: str) -> tuple[float, float] | None:
    """Returns that score 0 and 100, or None."""
    return REFERENCE.get(_level(name))


def _named(where: str) -> Callable:
    module, _, name = where.partition(":")
    return getattr(importlib.import_module(f"corerl.envs.{module}"), name)


def _source(name: str):
    """Returns the reader and the set that this task relabels."""
    if name == PACKAGED:
        return embedded, "halfcheetah-replay-regenerated"
    found = RELABELLED.fullmatch(name)
    if found is None:
        return None
    body, quality, version = found.groups()
    if version == "regenerated":
        return embedded, f"mujoco/{body}-{quality}-regenerated"
    return d4rl, f"{body}-{quality}-{version}"


def _hazard(name: str) -> Hazard:
    return HAZARDS[_level(name)]


def _level(name: str) -> str:
    """Returns the key in HAZARDS of a stochastic MuJoCo task. Another name for any other task."""
    set_of = name.partition("-stochastic-")[0]
    return ONLINE.get(name) or (set_of if set_of in HAZARDS else set_of.partition("-")[0])
