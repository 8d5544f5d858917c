"""Fitted Q evaluation (Le, Voloshin and Yue 2019, arXiv:1903.08738): a critic of a fixed policy.

    min (Q(s, a) - r - discount * E_{a' ~ pi_e} Qbar(s', a'))^2

over the data's rows, with a slow target Qbar: no importance weights, so no propensities and no variance
that grows with the horizon, but a bias where the policy leaves the data. The critics of all S policies
are one program, as in training.

Two horizons. Endless: the return goes on past a time limit (discount below 1), as the algorithms learn
it. Finite: the critic sees the time and nothing follows after `horizon` steps, so its value is of the
same return that the importance estimators judge, and discount 1 is allowed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from corerl import config, seeding
from corerl.config import at_least, positive, require, within
from corerl.data.dataset import Dataset
from corerl.nn import compile, networks, optim
from corerl.nn.learner import GradientStep
from corerl.ope.logs import check_horizon
from corerl.ope.policies import Policy


@dataclass
class Settings(config.Settings):
    """The settings for fitting the critics."""

    prefix: ClassVar[str] = "fqe."

    steps: int = positive(100_000)  # number of updates of the critics
    lr: float = positive(1e-4)
    batch_size: int = positive(256)
    hidden_layers: int = at_least(0, 2)
    hidden_width: int = positive(256)
    layer_norm: bool = False  # LayerNorm after every hidden activation
    polyak: float = within(0.01, "(0, 1]")  # share of new weights in targets, every update
    discount: float = 0.99  # discount of the estimated return
    horizon: int | None = within(  # steps that count in each episode (null: no limit)
        None, "[1, 1e12]"
    )
    critics: int = positive(1)  # critics per policy (their values are averaged)
    seed: int = 0  # seed of initial weights and batches

    def __post_init__(self):
        require(0 <= self.discount <= 1, f"discount={self.discount} must lie in [0, 1]")
        require(
            self.horizon is not None or self.discount < 1,
            "discount=1 makes returns without a horizon infinite. Choose a finite horizon, or a "
            "discount below 1",
        )
        super().__post_init__()


class FQE:
    """Critics of S policies.

    Args:
        policy: the policies. dataset: the rows. cfg: the settings.
        device, compile_mode: as of a run.

    Raises:
        CorerlError: a policy of another task, or a horizon that the data has no row of.
    """

    def __init__(
        self,
        policy: Policy,
        dataset: Dataset,
        cfg: Settings,
        *,
        device: torch.device | str = "cpu",
        compile_mode: str = "auto",
    ):
        policy.check(dataset)
        if cfg.horizon is not None:
            check_horizon(dataset, cfg.horizon)
            # At a time limit no next state may have been recorded.
            dataset = dataset.with_ends(_steps(dataset) + 1 == cfg.horizon)
        self.cfg, self.policy, self._device = cfg, policy, torch.device(device)
        self._seeds = [seeding.derive(cfg.seed, f"fqe/{seed}") for seed in policy.seeds]
        mean, std = dataset.obs_stats()
        self._mean, self._std = mean, np.where(std > 2e-3, std, 1.0)  # a constant feature stays so
        self.scale = _scale(dataset, cfg.discount)
        """Values are learned in this unit: the spread of the data's returns."""
        self._pack(dataset)
        self._build(dataset)
        mode = compile.resolve(compile_mode, self._device, cfg.steps)
        mode = "compile" if mode.plan == "graph" else mode
        self._step = GradientStep(self._loss, optim.Adam(self.critic.parameters(), cfg.lr), mode)

    def _pack(self, dataset: Dataset) -> None:
        """Puts rows on the device, and what every policy does at every next state."""
        t = dataset.transitions()
        time_of = _steps(dataset)[t.rows]
        horizon = self.cfg.horizon
        keep = np.ones(len(time_of), bool) if horizon is None else time_of < horizon
        over = t.terminated | (False if horizon is None else time_of + 1 >= horizon)
        actions = t.actions.reshape(len(t.actions), -1)
        parts = [
            self._inputs(t.observations, time_of),
            actions,
            t.rewards[:, None] / self.scale,
            self._inputs(t.next_observations, time_of + 1),
            over[:, None],
        ]
        self._sizes = [part.shape[1] for part in parts]
        packed = np.concatenate([part[keep].astype(np.float32) for part in parts], 1)
        self._rows = torch.from_numpy(packed).to(self._device)
        following = self._at(t.next_observations[keep])
        self._next = following.flatten(2).flatten(0, 1)  # (S * N, ...)
        self._draws = following.shape[2:]
        count = len(self._rows)
        self._offsets = torch.arange(len(self._seeds), device=self._device)[:, None] * count
        self._numbers = seeding.indices(self._seeds, count, self.cfg.batch_size, self._device)

    def _build(self, dataset: Dataset) -> None:
        cfg, lead = self.cfg, (len(self._seeds), self.cfg.critics)
        width, actions = self._sizes[:2]
        ends = (width, self._draws[0]) if self.policy.discrete else (width + actions, 1)
        sizes = [ends[0], *[cfg.hidden_width] * cfg.hidden_layers, ends[1]]
        rngs = seeding.generators(self._seeds, "init")
        norm = 1e-5 if cfg.layer_norm else None
        self.critic = networks.MLP(sizes, lead, rngs, layer_norm=norm).to(self._device)
        self.target = optim.target_of(self.critic)

    def fit(self, show: Callable[[int, np.ndarray], None] | None = None) -> None:
        """Makes `steps` updates. `show(step, loss (S,))` is called about every ten seconds."""
        said = time.monotonic()
        for step in range(1, self.cfg.steps + 1):
            loss = self.update()
            if show is not None and time.monotonic() - said > 10:
                said = time.monotonic()
                show(step, loss.cpu().numpy())

    def update(self) -> Tensor:
        """Takes one step on the next batch of every policy and returns its loss `(S,)`."""
        chosen = self._numbers.next()
        rows = self._rows.index_select(0, chosen.flatten()).unflatten(0, chosen.shape)
        following = self._next.index_select(0, (chosen + self._offsets).flatten())
        following = following.view(*chosen.shape, *self._draws)
        metrics = self._step(rows, following)
        optim.polyak(self.target, self.critic, self.cfg.polyak)
        return metrics["loss"]

    def _loss(self, rows: Tensor, following: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        observations, actions, rewards, next_observations, over = rows.split(self._sizes, -1)
        with torch.no_grad():
            next_value = self._value(self.target, next_observations, following)
            y = (rewards + self.cfg.discount * (1 - over) * next_value).squeeze(-1)
        if self.policy.discrete:
            numbers = actions.long()[:, None].expand(-1, self.cfg.critics, -1, -1)
            q = self.critic(observations[:, None]).gather(-1, numbers).squeeze(-1)
        else:
            q = self.critic(torch.cat([observations, actions], -1)[:, None]).squeeze(-1)
        # Critics of one policy share the target's mean, so that they differ by their fit alone.
        loss = (q - y[:, None]).square().mean(-1).sum(1)
        return loss, {"loss": loss / self.cfg.critics}

    def _value(self, critic, observations: Tensor, following: Tensor) -> Tensor:
        """Returns E_{a ~ pi} Q, mean over critics, `(S, B, 1)`."""
        if self.policy.discrete:
            values = critic(observations[:, None]).mean(1)
            return (following * values).sum(-1, keepdim=True)
        draws = following.shape[2]
        repeated = observations[:, :, None].expand(-1, -1, draws, -1)
        inputs = torch.cat([repeated, following], -1).flatten(1, 2)
        q = critic(inputs[:, None]).mean(1).squeeze(-1)
        return q.unflatten(1, (-1, draws)).mean(-1, keepdim=True)

    # What was learned, in the reward's unit.

    @torch.no_grad()
    def value(self, observations: np.ndarray, steps: np.ndarray | int = 0) -> np.ndarray:
        """Returns V(s) of every policy `(S, n)` at raw observations `(n, O)`, at those time steps."""
        return self._evaluate(observations, steps, self._at(observations))

    @torch.no_grad()
    def q(
        self, observations: np.ndarray, actions: np.ndarray, steps: np.ndarray | int = 0
    ) -> np.ndarray:
        """Returns Q(s, a) of every policy `(S, n)` at given actions `(n, A)`, or `(n,)` numbers."""
        taken = torch.from_numpy(actions.reshape(len(actions), -1)).to(self._device)
        if self.policy.discrete:
            one_hot = torch.nn.functional.one_hot(taken[:, 0].long(), self._draws[0]).float()
            taken = one_hot.expand(len(self._seeds), *one_hot.shape)
        else:
            taken = taken[:, None].expand(len(self._seeds), len(taken), 1, -1)
        return self._evaluate(observations, steps, taken)

    def _evaluate(self, observations, steps, following: Tensor) -> np.ndarray:
        steps = np.broadcast_to(steps, len(observations))
        inputs = torch.from_numpy(self._inputs(observations, steps)).to(self._device)
        parts = []
        for start in range(0, len(inputs), 8192):
            piece = slice(start, start + 8192)
            x = inputs[piece].expand(len(self._seeds), -1, -1)
            parts.append(self._value(self.target, x, following[:, piece]).squeeze(-1))
        return self.scale * torch.cat(parts, 1).cpu().double().numpy()

    def _inputs(self, observations: np.ndarray, steps: np.ndarray) -> np.ndarray:
        scaled = (observations - self._mean) / self._std
        if self.cfg.horizon is not None:
            scaled = np.concatenate([scaled, steps[:, None] / self.cfg.horizon], 1)
        return scaled.astype(np.float32)

    def _at(self, observations: np.ndarray) -> Tensor:
        """Probabilities `(S, n, K)` or actions `(S, n, M, A)` of every policy."""
        ask = self.policy.probabilities if self.policy.discrete else self.policy.actions
        return torch.from_numpy(ask(observations).astype(np.float32, copy=False)).to(self._device)


def _steps(dataset: Dataset) -> np.ndarray:
    """Returns every row's step within its episode, `(N,)`."""
    return np.arange(len(dataset)) - np.repeat(dataset.episode_starts, dataset.episode_lengths())


def _scale(dataset: Dataset, discount: float) -> float:
    spread = float(dataset.returns_to_go(discount).std())
    return spread if spread > 0 else max(1.0, float(np.abs(dataset.rewards).max()))


def tell(label: str, steps: int) -> Callable[[int, np.ndarray], None]:
    """Returns a `show` for `fit` that writes a line."""
    begun = time.monotonic()

    def show(step: int, loss: np.ndarray) -> None:
        left = (steps - step) * (time.monotonic() - begun) / step
        print(
            f"corerl: fqe of {label}, step {step:,}/{steps:,}, loss {loss.mean():.3g}, "
            f"{left:.0f} s left",
            file=sys.stderr,
            flush=True,
        )

    return show
