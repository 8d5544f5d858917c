"""Discrete CQL (Kumar, Zhou, Tucker and Levine 2020, arXiv:2006.04779): CQL(H) on a deep Q-network.

With discrete actions the log-sum-exp of eq. 4 is exact, so nothing is sampled:

    w * (log sum_a exp Q(s, a) - Q(s, a_data))  +  the Bellman error of DQN or QR-DQN

    python algos/cql_discrete.py task=corerl/cartpole steps=5000 seeds=3
    corerl train -m algo=cql_discrete task=corerl/cartpole algo.weight=0,1,4 algo.critic=quantile

Differences:
 1. The paper's Atari results stand on QR-DQN (`critic=quantile`), with the penalty on the quantiles'
    mean and w fixed per amount of data (4 on 1 % of it, 1 on 10 %). `critic=mean` is DQN with
    Mnih et al.'s Huber loss.
 2. Observations are vectors: no reader of ours has Atari's logged images. `Encoder` would take them.
 3. `double=true`: the online network chooses the next action (van Hasselt et al. 2016); the paper's base
    takes the target network's best.
 4. A time limit is no end, which Atari's files do not tell apart.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from corerl.buffers.replay import Batch
from corerl.config import added, at_least, group, one_of, positive, within
from corerl.nn import compile, optim
from corerl.nn.critics import action_values, gather_actions
from corerl.nn.learner import GradientStep, Sizes, Spec, Stateful
from corerl.nn.mlp_settings import MLPSettings
from corerl.risk.quantiles import huber_quantile_loss, midpoints
from corerl.training import preprocessing
from corerl.training.run import Run
from corerl.training.weighting import Weighting


@dataclass
class Config(MLPSettings):
    actions = "discrete"
    name: str = "cql_discrete"
    label: str = "discrete CQL"

    weight: float = at_least(0, 1.0)  # w, weight of the conservative penalty (0: QR-DQN or DQN)
    critic: str = one_of("quantile", "mean")  # quantile (quantiles of return, QR-DQN) | mean (DQN)
    quantiles: int = positive(200)  # N, quantiles per action (critic=quantile)
    kappa: float = positive(1.0)  # error above which the Huber loss is linear
    discount: float = within(0.99, "[0, 1]")
    double: bool = False  # the online network chooses the next action (double DQN)
    target_every: int = positive(2_000)  # updates between copies to the target network

    lr: float = positive(5e-5)
    adam_eps: float = positive(0.01 / 32)
    batch_size: int = positive(32)
    hidden_layers: int = positive(1)  # dense hidden layers (after the convolutions, for images)
    hidden_width: int = positive(512)
    data: Weighting = added(group(Weighting))


class DiscreteCQL(Stateful):
    """Discrete CQL agents of S seeds, trained together."""

    def __init__(self, cfg: Config, spec: Spec):
        self.cfg = cfg
        count = cfg.quantiles if cfg.critic == "quantile" else 1
        self.critic = action_values(cfg, spec, count)
        self.target = optim.target_of(self.critic)
        self.optimizer = optim.Adam(self.critic.parameters(), cfg.lr, eps=cfg.adam_eps)
        self._fractions = midpoints(count, spec.device)
        self._step = GradientStep(self.loss, self.optimizer, spec.mode)

    # Losses. Batch fields are (S, B, ...), actions (S, B, 1); each loss is (S,).

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Adds to the Bellman error w times the gap between log-sum-exp and the data's action (eq. 4)."""
        values = self.critic(batch.observations)
        taken = gather_actions(values, batch.actions.squeeze(-1).long())
        bellman = self.bellman_loss(batch, taken)
        q = values.mean(-1)
        gap = (torch.logsumexp(q, -1) - taken.mean(-1)).mean(-1)
        loss = bellman + self.cfg.weight * gap
        return loss, {"loss": loss, "bellman_loss": bellman, "gap": gap, "q": taken.mean((1, 2))}

    def bellman_loss(self, batch: Batch, taken: Tensor) -> Tensor:
        """Regresses the taken action's numbers `(S, B, N)` towards r + discount * the best next action's."""
        with torch.no_grad():
            next_values = self.target(batch.next_observations)
            chooser = self.critic(batch.next_observations) if self.cfg.double else next_values
            best = gather_actions(next_values, chooser.mean(-1).argmax(-1))
            discount = self.cfg.discount * (1 - batch.terminated)
            y = batch.rewards[..., None] + discount[..., None] * best
        if self.cfg.critic == "mean":
            return F.huber_loss(taken, y, reduction="none", delta=self.cfg.kappa).mean((1, 2))
        return huber_quantile_loss(taken, y, self._fractions, self.cfg.kappa).mean(-1)

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Takes one step of Adam."""
        return self._step(batch)

    def copy_target(self) -> None:
        """Makes the target network equal to the online one."""
        optim.polyak(self.target, self.critic, 1.0)

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """Returns the best actions by Q, `(S, n, ...) -> (S, n)`."""
        return self.critic(observations).mean(-1).argmax(-1)


build = DiscreteCQL


def train(cfg: Config, run: Run) -> None:
    buffer, shape, actions = preprocessing.load_discrete(run, cfg.data, cfg.batch_size)
    agent = DiscreteCQL(cfg, run.spec(Sizes(shape, actions, discrete=True)))
    update = compile.captured(agent.update, run.mode)
    for step in run.steps(agent=agent, buffer=buffer):
        metrics = update(buffer.sample())
        run.log(step, metrics)
        if step % cfg.target_every == 0:
            agent.copy_target()
        run.evaluate(step, agent.act)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
