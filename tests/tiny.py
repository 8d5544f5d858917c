"""Every algorithm's own `train` on a job of a second: tiny networks, a few dozen updates, nothing written.

An algorithm is found by being there. Sizes are set by the names of settings, so a new file needs a line
here only where its task is not an offline one, or where it has a size of a new name.
"""

import importlib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any

import torch

from corerl import algos
from corerl.config import Config, Eval
from corerl.data.dataset import Dataset
from corerl.data.tasks import Task
from corerl.preferences.asking import Queries
from corerl.preferences.general import General
from corerl.preferences.hindsight import World
from corerl.preferences.reward_models import Markov
from corerl.preferences.sources import Preferences
from corerl.training.experience import Collect
from corerl.training.run import Run

SIZES = {
    "hidden_width": 8,
    "width": 8,
    "action_width": 8,
    "vae_width": 8,
    "actor_widths": [8],
    "head_width": 8,
    "embedding_width": 4,
    "features": 4,
    "heads": 2,
    "layers": 1,
    "batch_size": 8,
    "pairs": 6,
    "length": 8,
    "crop": 4,
    "context": 3,
    "window": 5,
    "samples": 2,
    "experts": 2,
    "perturbations": 2,
    "flow_steps": 2,
    "critics": 3,
    "critic_subsample": 2,
    "utd": 2,
    "members": 2,
    "levels": 2,
    "repeats": 2,
    "quantiles": 5,
    "fractions": 3,
    "penalty_fractions": 2,
    "target_fractions": 2,
    "policy_fractions": 4,
    "cosines": 3,
    "atoms": 5,
    "bins": 5,
    "reward_bins": 5,
    "particles": 4,
    "examples": 8,
    "stocks": 11,
    "start_stocks": 11,
    "starts": 3,
    "etas": 8,
    "rows": 8,
    "policy_delay": 1,
    "episodes": 8,
    "max_steps": 5,
    "updates": 5,
    "random_steps": 10,
    "explore_steps": 8,
    "learning_starts": 20,
    "train_every": 2,
    "epsilon_steps": 50,
    "target_every": 8,
    "warmup_steps": 10,
    "capacity": 300,
    "max_timestep": 20,
    "bc_steps": 12,
    "vae_steps": 2,
    "ema_every": 2,
    "ema_start": 3,
    "lr_every": 3,
    "latent_dim": 8,
    "rep_dim": 4,
    "subgoal_steps": 3,
    "encoder_steps": 12,
    "history": 3,
    "future": 4,
    "slots": 2,
}
"""Values of settings by their names, at any depth of a `Config`."""
PRETRAIN = 20
FITTED = 14
"""Updates of a learned reward, in the runs that fit one first."""
OFFLINE, NUMBERED, ONLINE = "corerl/pendulum", "maze/v1-vector", "gym/Pendulum-v1"
OTHERWISE: dict[str, dict[str, Any]] = {
    "bc_neorl2": {"own": {"validate_every": 0}},
    "bcq_discrete": {"task": "corerl/cartpole"},
    "cal_ql": {"steps": 240},  # waits for an episode of 200 steps, as spo does
    "cql_discrete": {"task": "corerl/cartpole"},
    "cvar": {"task": "risk/B", "own": {"low": -15.0, "high": 20.0}},
    "cvar_pg": {"task": "risk/D2"},
    "cvar_tabular": {"task": "risk/A"},
    "ela": {"task": "risk/low-rank", "steps": 4},
    "expo": {"own": {"phase": "both"}},
    "hra": {"task": NUMBERED},
    "icvar": {"task": "risk/linear-mixture", "steps": 4},
    "iqn": {"task": NUMBERED},
    "md3qn": {"task": NUMBERED},
    "mrq": {"task": ONLINE},
    "dqn": {"task": NUMBERED},
    "dr_rpo": {"task": "risk/low-rank", "steps": 4},
    "pebble": {
        "task": ONLINE,
        "own": {"queries": Queries(budget=8, at_once=4, every=20, length=4, epochs=8)},
    },
    "pref_mixture": {
        "task": "risk/two-groups",
        "steps": 4,
        "own": {"comparisons": 10, "starts": 1},
    },
    "p2r": {"task": "risk/low-rank", "steps": 4},
    "pref_pessimistic": {"task": "risk/three-arms", "steps": 4},
    "orpo": {"task": "risk/one-door"},
    "oppo": {"own": {"latent": 3}},
    "orpo_sac": {"task": "risk/pendulum-proxy", "own": {"random_steps": 10, "recent": 20}},
    "qr_dqn": {"task": NUMBERED},
    "sqirl": {"task": "risk/trap", "own": {"lookahead": 2, "max_steps": 60}},
    "r2pvi": {"task": "risk/linear-shift", "steps": 4},
    "subpo": {"task": "risk/coverage"},
    "two_atom": {"task": "risk/coins"},
    "reload": {"task": "risk/overheat", "steps": 4},
    "reload_sac": {"task": "risk/HalfCheetah-velocity-v4", "own": {"period": 20}},
    "sac": {"task": ONLINE},
    "pmoe": {"task": ONLINE},
    "td3": {"task": ONLINE, "own": {"policy_delay": 2}},
    "mex": {"task": ONLINE, "own": {"policy_delay": 2}},
    "rrs": {"task": ONLINE, "own": {"policy_delay": 2, "turn": 4}},
    "spo": {"task": ONLINE, "steps": 240},
}
OTHERWISE |= {
    name: {"task": "corerl/goal-maze"}
    for name in ("gcbc", "gcivl", "gciql", "crl", "qrl", "hiql", "cfgrl_goals", "goat", "gcpc")
}
"""Algorithms that do not learn from `OFFLINE` in 60 steps with `SIZES` alone."""
EXACT = {
    "cvar_tabular",
    "dr_rpo",
    "ela",
    "icvar",
    "orpo",
    "p2r",
    "pref_mixture",
    "pref_pessimistic",
    "r2pvi",
    "reload",
    "two_atom",
}
"""Algorithms on finite MDPs, without a network."""
LEARNERS = [name for name in algos.names() if name not in EXACT]
WITH_PRIOR = Markov(
    members=2, hidden_layers=1, hidden_width=8, batch_size=4, steps=FITTED, prior=1.0
)
RANKED = {"preferences": Preferences(pairs=30, length=8, ranked=3)}
WORLD = World(layers=2, heads=2, width=8, steps=FITTED, batch_size=3)
MODEL = General(dimension=2, budget=5, hidden_layers=1, hidden_width=8, batch_size=4)
ASKED = OTHERWISE["pebble"]["own"]["queries"]
FULL = Collect(
    learning_starts=20, train_every=2, capacity=40, epsilon_steps=50, n_step=3, eval_epsilon=0.3
)
"""Experience of which the first steps are overwritten."""
VARIANTS: dict[str, dict[str, Any]] = {
    "codac tuned": {"own": {"tune_alpha": True}},
    "cpl kl": {"own": {"reference": True}},
    "cpl_ranked taught": {"own": {"ranked_by": "teacher", "dropout": 0.0}},
    "cql antmaze": {"own": {"lagrange": "young_geng", "max_backup": "min_first"}},
    "crr exp": {
        "own": {"filter": "exp", "policy": "squashed", "order": "joint", "norm_first": True}
    },
    "cvar distortion": {"own": {"objective": "distortion", "low": None, "high": None}},
    "cvar shortfall": {"own": {"critic": "shortfall"}},
    "cvar_offline cosine": {"own": {"cosine": True, "policy_delay": 2}},
    "cvar_pg ecrm": {"task": "risk/B", "own": {"objective": "ecrm", "low": -3.0, "high": 4.0}},
    "cvar_pg variance": {
        "task": "risk/arbitrage",
        "own": {"objective": "mean_variance", "discount": 0.9},
    },
    "dqn courier": {"task": "corerl/courier", "own": {"data": FULL}},
    "dtr blocks": {"own": {"trajectories": "blocks", "select": "argmax"}},
    "dtr segments": {"own": {"trajectories": "segments"}},
    "dvl imitation": {"own": {"imitation": True, "divergence": "kl"}},
    "dvl kl": {"own": {"divergence": "kl", "dropout": 0.1}},
    "dvl tv": {"own": {"divergence": "tv", "random_actions": 0}},
    "edac sac-n": {"own": {"eta": 0.0}},
    "ipl awac": {"own": {"form": "awac", "critics": 1}},
    "ipl alone": {"own": {"replay": False, "dropout": 0.1}},
    "iql joint": {"own": {"dropout": 0.1, "order": "joint"}},
    "iql deterministic": {"own": {"policy": "deterministic"}},
    "pebble disagreement": {
        "own": {"queries": replace(ASKED, chooser="disagreement", gamma=0.9, epsilon=0.3)}
    },
    "pebble world": {
        "own": {
            "reward": replace(WITH_PRIOR, stop_accuracy=1.0),
            "world": WORLD,
            "reset_updates": 2,
        }
    },
    "pref_iql first": {"own": {"reward_first": True}},
    "pref_iql alone": {"own": {"replay": False, "dropout": 0.1} | RANKED},
    "pref_iql ranked": {"own": RANKED},
    "pref_iql world": {"own": {"reward": replace(WITH_PRIOR, stop_accuracy=None), "world": WORLD}},
    "rebrac delayed": {"own": {"policy_delay": 2}},
    "sac mujoco": {"task": "gym/Hopper-v4", "own": {"capacity": 40}},
    "spo model": {
        "task": "risk/three-corners",
        "steps": 60,
        "own": {"teacher": "environment", "queue": 3, "model": MODEL},
    },
    "spot delayed": {"own": {"vae_steps": 20, "policy_delay": 2}},
    "spot iwae": {"own": {"density": "iwae", "samples": 3}},
    "td3_awr joint": {"own": {"critic_updates": 3}},
    "td3_bc delayed": {"own": {"policy_delay": 2}},
}
"""Settings with which an algorithm takes another way than with its defaults; the first word is its name."""
JOBS = sorted(LEARNERS + list(VARIANTS))


def settings(name: str, **own) -> Config:
    """A tiny job of this name, two dozen updates or more; `own` are settings of the algorithm."""
    usual, variant = OTHERWISE.get(name.split()[0], {}), VARIANTS.get(name, {})
    special = usual | variant | {"own": usual.get("own", {}) | variant.get("own", {}) | own}
    algo = importlib.import_module(f"corerl.algos.{name.split()[0]}").Config()
    algo = replace(_shrunk(algo), **_both(algo, special["own"]))
    return Config(
        algo=algo,
        task=special.get("task", OFFLINE),
        steps=special.get("steps", 60),
        eval=Eval(every=PRETRAIN),  # which divides the steps before a switch to the environment
        root="unused",
    )


def _both(algo: Any, own: dict[str, Any]) -> dict[str, Any]:
    """Adds the updates on the data to an algorithm that makes none unless `phase=both`."""
    if own.get("phase") != "both" or algo.phase == "both":
        return own
    return {"online": replace(_shrunk(algo.online), pretrain_steps=PRETRAIN)} | own


def _shrunk(settings: Any) -> Any:
    small = {f.name: SIZES[f.name] for f in fields(settings) if f.name in SIZES}
    for field in fields(settings):
        value = getattr(settings, field.name)
        if is_dataclass(value):
            small[field.name] = _shrunk(value)
    if getattr(settings, "pretrain_steps", 0):
        small["pretrain_steps"] = PRETRAIN
    fitted = {"members", "window", "warmup", "expectile"} & vars(settings).keys()
    if fitted and hasattr(settings, "steps"):
        small["steps"] = FITTED
    return replace(settings, **small)


class Short(Run):
    """Drives an algorithm's `train` on the first episodes of its data, without evaluating or saving.

    Args:
        updates: after which it ends.

    Attributes:
        parts: what the algorithm registers. metrics: of every update, copied. act: what it evaluates.
    """

    def __init__(
        self,
        cfg: Config,
        seeds=(0, 1),
        mode: str = "off",
        device: str = "cpu",
        updates: int = 10**9,
    ):
        super().__init__(replace(cfg, device=device, compile="off"), seeds, lambda *_: None)
        self.mode, self._updates = mode, updates
        self.parts: dict[str, Any] = {}
        self.metrics: list[dict[str, torch.Tensor]] = []
        torch.manual_seed(0)
        importlib.import_module(f"corerl.algos.{cfg.algo.name}").train(cfg.algo, self)

    def dataset(self) -> Dataset:
        return _episodes(self.task)

    def steps(self, *, stride: int = 1, **parts) -> Iterator[int]:
        self.parts = {name: part for name, part in parts.items() if part is not None}
        for step in range(stride, self.cfg.steps + 1, stride):
            if len(self.metrics) < self._updates:
                yield step

    def log(self, step: int, metrics: dict) -> None:
        self.metrics.append({name: value.clone() for name, value in metrics.items()})

    def evaluate(self, step, act, also=None) -> None:
        self.act = act

    def save(self, step: int) -> None:
        """Nothing is written."""

    def state(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self.parts.items()}


@cache
def _episodes(task: Task) -> Dataset:
    return task.load().select_episodes(range(10))
