"""QCS: Q-aided conditional supervised learning (Kim et al. 2024, NeurIPS, arXiv:2402.02017).

Imitation given a return does not stitch, and a critic misleads where the data is narrow. QCS imitates, and
climbs a critic the more, the worse the episode was. The critic is IQL's, learned first and frozen then:

    loss      |pi - a|^2 / A  -  w min_i Q_i(s, pi) / |mean of min_i Q_i over the data|
    weight    w = max(q_scale * (best_score - score of the row's episode), min_q)

    python algos/qcs.py task=corerl/pendulum seeds=3
    corerl train algo=qcs task=d4rl/hopper-medium-v2 seeds=5
    corerl train algo=qcs_mlp task=d4rl/hopper-medium-v2 seeds=5

Of `steps`, the first `critic.steps` are the critic's. The policy is the Decision Transformer's
(algos/dt.py), or with `policy=mlp` a network that sees one state and its return-to-go. With `q_scale=0` they
are the Decision Transformer and return-conditioned cloning (RvS), bit for bit.

What differs from the authors' code (beanie00/QCS at f44ab2f, from which the equations are):

    item            authors                                         ours
 1  transformer     Decision ConvFormer by default; theirs and      the Decision Transformer's, with both
                    their transformer see neither actions nor time
 2  optimiser       LAMB                                            AdamW, of the same rate and decay
 3  memory          8 of the 20 steps when evaluated                all of `context`
 4  targets         once and twice the best return in the data,     `targets`, as algos/dt.py
                    both reported
 5  best_score      1.1 on Hopper and Walker2d, 0.9 on              the table, in points (110, 90)
                    HalfCheetah, 1 elsewhere
 6  scores          D4RL's reference                                the same; the data's range where a task
                                                                    has none
 7  LayerNorm       makes both critics share every layer            two critics
 8  condition       subgoals on AntMaze                             returns
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from corerl.algos import dt
from corerl.algos.dt import DT, facts, parts
from corerl.algos.iql import IQL
from corerl.buffers.replay import Batch, OfflineBuffer
from corerl.buffers.sequences import ContextWindow, Windows
from corerl.config import added, at_least, group, one_of, positive, within
from corerl.data.dataset import Dataset
from corerl.data.tasks import Task
from corerl.nn import compile, networks, optim, transformer
from corerl.nn.critics import Critics, StateValue, q_of_windows
from corerl.nn.learner import GradientStep, Spec, Stateful
from corerl.nn.mlp_settings import MLPSettings
from corerl.training import preprocessing
from corerl.training.run import Run
from corerl.training.windows import load_windows

AT_ONCE = 10_000
"""Rows of the data whose values are computed together."""


@dataclass
class Critic(MLPSettings):
    """IQL's values, which see states as they are recorded."""

    prefix: ClassVar[str] = "algo.critic."
    critic_loss = "sum"  # of IQL's parts

    steps: int = positive(1_000_000)  # updates of the critic, before those of the policy
    expectile: float = within(0.7, "(0, 1)")
    discount: float = within(0.99, "[0, 1]")
    polyak: float = within(0.005, "[0, 1]")  # share of the new critic in its target, every update
    reward_shift: float = 0.0  # added to every reward that the critic learns from
    lr: float = positive(3e-4)
    batch_size: int = positive(256)
    hidden_layers: int = at_least(0, 2)
    hidden_width: int = positive(256)


@dataclass
class Config(dt.Config):
    actions = "continuous"
    name: str = "qcs"
    label: str = "QCS"

    policy: str = one_of(  # transformer | mlp (sees one state and its return-to-go)
        "transformer", "mlp"
    )
    q_scale: float = at_least(0, 1.0)  # weight of Q per point by which a score is below best_score
    best_score: float = 100.0  # Q has weight min_q in episodes with at least this score
    min_q: float = at_least(0, 0.0)  # smallest weight of Q
    critic: Critic = group(Critic)
    normalize_states: bool = added(True)  # gives the policy's states mean 0, standard deviation 1

    layers: int = positive(4)
    heads: int = positive(2)
    width: int = positive(256)
    max_grad_norm: float | None = positive(None)  # largest gradient norm (null: not clipped)

    def first_phase(self) -> tuple[int, str]:
        return self.critic.steps, "algo.critic.steps"


class StepPolicy(nn.Module):
    """From each step's state and return-to-go to its action, as `dt.Transformer`, without a memory."""

    def __init__(
        self,
        cfg: Config,
        observation_dim: int,
        action_dim: int,
        rngs: Sequence[torch.Generator],
        discrete: bool = False,
    ):
        super().__init__()
        sizes = [observation_dim + 1, *[cfg.width] * cfg.layers, action_dim]
        self.body = networks.MLP(sizes, (len(rngs),), rngs)
        self.places, self._dropout, self._width = cfg.layers, cfg.dropout, cfg.width
        self._sizes, self._last = (observation_dim, action_dim), cfg.max_timestep - 1

    def forward(self, windows: Windows, keys: Tensor | None = None) -> Tensor:
        """Returns the actions `(S, B, K, A)`. `keys` `(S, places)` int32 drop units."""
        inputs = torch.cat([windows.observations, windows.returns_to_go[..., None]], -1)
        rows = inputs.flatten(1, 2)
        keep = transformer.multipliers(keys, (rows.shape[1], self._width), self._dropout)
        return torch.tanh(self.body(rows, keep)).unflatten(1, inputs.shape[1:3])

    def context(self, lead: tuple[int, int], length: int) -> ContextWindow:
        """Makes a memory of the last step alone."""
        like = self.body.layers[0].weight
        return ContextWindow(lead, 1, *self._sizes, last_timestep=self._last, like=like)


class Values(Stateful):
    """IQL without its policy: S independent learners of Q and V."""

    value_loss, critic_loss = IQL.value_loss, IQL.critic_loss

    def __init__(self, cfg: Critic, spec: Spec):
        self.cfg = cfg
        hidden = [cfg.hidden_width] * cfg.hidden_layers
        O, A = spec.observation_dim, spec.action_dim
        self.critic = Critics([O, A, *hidden], spec.rngs, **cfg.mlp_options).to(spec.device)
        self.value = StateValue([O, *hidden], spec.rngs, **cfg.mlp_options).to(spec.device)
        self.target = optim.target_of(self.critic)
        v = self.value_optimizer = optim.Adam(self.value.parameters(), cfg.lr)
        q = self.critic_optimizer = optim.Adam(self.critic.parameters(), cfg.lr)
        self._value_step = GradientStep(self.value_loss, v, spec.mode)
        self._critic_step = GradientStep(self._critic_loss, q, spec.mode)

    def _critic_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        loss = self.critic_loss(batch)
        return loss, {"critic_loss": loss}

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Takes one step of V, then of Q with the new V, then of the targets."""
        metrics = self._value_step(batch)
        metrics |= self._critic_step(batch)
        optim.polyak(self.target, self.critic, self.cfg.polyak)
        return metrics | {"target_q": metrics["target_q"].mean(-1)}

    @torch.no_grad()
    def size(self, observations: np.ndarray, actions: np.ndarray) -> Tensor:
        """Returns |mean of min Q| `(S,)` over rows `(N, O)` and `(N, A)`."""
        like = self.critic.layers[0].weight
        total = 0.0
        for start in range(0, len(observations), AT_ONCE):
            rows = (x[start : start + AT_ONCE] for x in (observations, actions))
            shown = [torch.from_numpy(x).to(like)[None].expand(len(like), -1, -1) for x in rows]
            total = total + self.critic(*shown).amin(1).double().sum(-1)
        return (total / len(observations)).abs().to(like)


class QCS(DT):
    """QCS agents of S seeds. Attributes: `q_size` (S,), by which Q is divided."""

    def __init__(self, cfg: Config, spec: Spec):
        super().__init__(cfg, spec, dt.Transformer if cfg.policy == "transformer" else StepPolicy)
        self.values = Values(cfg.critic, spec)
        self.q_size = torch.ones(spec.seeds, device=spec.device)

    def loss(
        self, windows: Windows, weights: Tensor, keys: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Adds imitation, and minus Q of the policy's actions with the windows' `weights` `(S, B)`."""
        actions = self.transformer(windows, keys)
        imitation = self.imitation(actions, windows)
        states = windows.observations * self.normalizer.std + self.normalizer.mean
        q = q_of_windows(self.values.critic, states, actions).amin(1)
        aid = self.mean(weights[..., None] * q, windows.valid) / self.q_size
        metrics = {"imitation_loss": imitation, "q_aid": aid}
        return imitation - aid, metrics | {"policy_q": self.mean(q, windows.valid)}

    def fit(self, batch: Batch) -> dict[str, Tensor]:
        """Takes one step of the critic."""
        return self.values.update(batch)

    def update(self, windows: Windows, weights: Tensor, keys: Tensor | None) -> dict[str, Tensor]:
        """Takes one step of the policy. `keys` are for dropout."""
        return self._step(windows, weights, keys)


def q_weights(cfg: Config, task: Task, dataset: Dataset) -> np.ndarray:
    """Returns the weight w of Q at every row, `(N,)`, by the score of its episode."""
    returns = dataset.episode_returns()
    scores = task.normalize(returns)
    if scores is None:
        scores = 100 * (returns - returns.min()) / max(np.ptp(returns), 1e-9)
    weights = np.maximum(cfg.q_scale * (cfg.best_score - scores), cfg.min_q)
    return np.repeat(weights, dataset.episode_lengths())


build = QCS


def train(cfg: Config, run: Run) -> None:
    policy_steps = run.cfg.policy_steps()
    labels = partial(q_weights, cfg, run.task)
    dataset, buffer, normalizer = load_windows(cfg, run, labels, cfg.normalize_states)
    rewards = preprocessing.Preprocess(reward_shift=cfg.critic.reward_shift)
    other = partial(OfflineBuffer, purpose="critic's batch")
    transitions, _ = preprocessing.load(run, rewards, cfg.critic.batch_size, kind=other)
    spec = run.spec(buffer, normalizer, policy_steps, facts(cfg, dataset))
    agent = QCS(cfg, spec)
    keys = transformer.dropout_keys(run.seeds, agent.transformer.places, run.device)
    players = parts(agent, spec)
    fit, update = (compile.captured(call, run.mode) for call in (agent.fit, agent.update))
    for step in run.steps(agent=agent, buffer=buffer, transitions=transitions, keys=keys):
        if step <= cfg.critic.steps:
            metrics = fit(transitions.sample())
            if step == cfg.critic.steps:
                agent.q_size.copy_(agent.values.size(dataset.observations, dataset.actions))
        else:
            metrics = update(*buffer.sample_labelled(), keys.next())
        run.log(step, metrics)
        if step > cfg.critic.steps:
            run.evaluate(step, players["policy"], players["also"])
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
