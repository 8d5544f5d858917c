"""What the tests of offline risk-sensitive algorithms share: D1 and D2 played exactly, and refusals."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import tiny
import torch
from scipy import stats as scipy_stats
from small import config

from corerl.data.dataset import Dataset
from corerl.launch.settings_tables import table
from corerl.risk import measures
from corerl.training.preprocessing import Preprocess

ATOMS = 1500
XI = scipy_stats.norm.ppf((np.arange(ATOMS) + 0.5) / ATOMS)
KAPPA = {0.1: 1.754983, 0.25: 1.271106, 0.5: 0.797885}  # pdf(quantile) / tau of a standard normal
OPEN_LOOP = {0.1: 0.144035, 0.25: 0.303156, 0.5: 0.515388}  # best static CVaR in D2 without looking
CLOSED_LOOP = {0.1: 0.1666, 0.25: 0.3253, 0.5: 0.5323}  # and with


def best_action(tau: float) -> float:
    """D1's, and the iterated one of every step of D2."""
    return 1 - 0.5 * KAPPA[tau]


class Learner(tiny.Short):
    """An algorithm's own `train` with its table's settings for the task, without directories."""

    def __init__(self, algo: str, task: str, seeds: list[int], updates: int, **own):
        values = {k: v for k, v in table(algo, task).items() if k.startswith("algo.")}
        data = {k: values.pop(k) for k in list(values) if k.startswith("algo.data.")}
        settings = {k.removeprefix("algo."): v for k, v in values.items()}
        settings["data"] = Preprocess(**{k.removeprefix("algo.data."): v for k, v in data.items()})
        cfg = config(Path("unused"), algo, own=settings | own, task=task, steps=updates)
        super().__init__(cfg, seeds)

    def dataset(self) -> Dataset:
        return self.task.load()


def first_actions(learner: Learner) -> np.ndarray:
    """a in [0, 1] of each seed where the gamble begins."""
    return _actions(learner.act, torch.zeros(len(learner.seeds), 1, 2))[:, 0]


def static_cvar_in_d2(learner: Learner, tau: float) -> np.ndarray:
    """CVaR of the total of both steps, `(S,)`, by quadrature over both normal draws."""
    act, seeds = learner.act, len(learner.seeds)
    if hasattr(act, "begin"):
        act.begin(seeds, ATOMS)
    first = _actions(act, torch.zeros(seeds, ATOMS, 2))
    rewards = first - first**2 / 2 + 0.5 * first * XI
    if hasattr(act, "reward"):
        act.reward(torch.as_tensor(rewards, dtype=torch.float32))
    there = torch.as_tensor(np.stack([np.full_like(rewards, 0.5), rewards], -1))
    second = _actions(act, there.float())[..., None]
    totals = rewards[..., None] + second - second**2 / 2 + 0.5 * second * XI
    return np.array([measures.cvar(x.ravel(), tau) for x in totals])


def _actions(act: Callable, observations: torch.Tensor) -> np.ndarray:
    actions = act(observations).double().numpy()[..., 0]
    return np.clip((1 + actions) / 2, 0, 1)
