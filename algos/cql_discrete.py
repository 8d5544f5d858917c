"""Discrete CQL (Kumar, Zhou, Tucker and Levine 2020, arXiv:2006.04779): CQL(H) on a deep Q-network.

With numbered actions the log-sum-exp of eq. 4 is exact, so nothing is sampled:

    w * (log sum_a exp Q(s, a) - Q(s, a_data))  +  the Bellman error of DQN or QR-DQN

    python algos/cql_discrete.py task=corerl/cartpole steps=5000 seeds=3
    corerl train -m algo=cql_discrete task=corerl/cartpole algo.weight=0,1,4 algo.critic=quantile

Differences:
 1. The paper's Atari results stand on QR-DQN (`critic=quantile`), with the penalty on the quantiles'
    mean and w fixed per amount of data (1 or 4; our reading, unverified). `critic=mean` is DQN with
    Mnih et al.'s Huber loss.
 2. Observations are vectors: no reader of ours has Atari's logged images. `Encoder` would take them.
 3. `double=true`: the online network chooses the next action (van Hasselt et al. 2016); the paper's base
    takes the target network's best.
 4. A time limit is no end, which Atari's files do not tell apart.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from corerl.buffers.replay import Batch
from corerl.config import added, group, require
from corerl.nn import compile, networks, optim
from corerl.nn.encoders import Encoder
from corerl.nn.learner import Stateful
from corerl.risk.quantiles import huber_quantile_loss, midpoints
from corerl.training import preprocessing
from corerl.training.run import Run
from corerl.training.weighting import Weighting


@dataclass
class Config:
    name: str = "cql_discrete"
    label: str = "discrete CQL"

    weight: float = 1.0  # w of the conservative penalty; 0 is plain (QR-)DQN on the data
    critic: str = "quantile"  # quantile (QR-DQN) | mean (DQN)
    quantiles: int = 200  # N
    kappa: float = 1.0  # where the squared error turns into the absolute one
    discount: float = 0.99
    double: bool = False  # the online network chooses the next action
    target_every: int = 2_000  # updates between copies to the target network

    lr: float = 5e-5
    adam_eps: float = 0.01 / 32
    batch_size: int = 32
    hidden_layers: int = 1  # dense, after the convolutions where observations are images
    hidden_width: int = 512
    data: Weighting = added(group(Weighting))

    def __post_init__(self):
        require(self.weight >= 0, f"algo.weight={self.weight} must not be negative")
        require(self.critic in ("quantile", "mean"), f"algo.critic={self.critic} unknown")
        require(self.quantiles > 0, f"algo.quantiles={self.quantiles} must be positive")
        require(self.kappa > 0, f"algo.kappa={self.kappa} must be positive")
        require(self.target_every > 0, f"algo.target_every={self.target_every} must be positive")
        require(self.hidden_layers > 0, f"algo.hidden_layers={self.hidden_layers} must be positive")


class Critic(nn.Module):
    """N numbers for each of A actions, `(S, B, *shape) -> (S, B, A, N)`; their mean is Q."""

    def __init__(self, cfg: Config, shape: tuple[int, ...], actions: int, rngs):
        super().__init__()
        self.counts = (actions, cfg.quantiles if cfg.critic == "quantile" else 1)
        self.encoder = Encoder(shape, cfg.hidden_layers, cfg.hidden_width, rngs)
        outputs = self.counts[0] * self.counts[1]
        self.head = networks.Linear(cfg.hidden_width, outputs, (len(rngs),), rngs)

    def forward(self, observations: Tensor) -> Tensor:
        return self.head(self.encoder(observations)).unflatten(-1, self.counts)


class DiscreteCQL(Stateful):
    """S independent learners. `shape`: of an observation; `actions`: how many; `rngs`: one per seed."""

    def __init__(
        self,
        cfg: Config,
        shape: tuple[int, ...],
        actions: int,
        rngs: list[torch.Generator],
        *,
        device: torch.device | str = "cpu",
        mode: str = "off",
    ):
        self.cfg = cfg
        self.critic = Critic(cfg, shape, actions, rngs).to(device)
        self.target = optim.target_of(self.critic)
        self.optimizer = optim.Adam(self.critic.parameters(), cfg.lr, eps=cfg.adam_eps)
        self._fractions = midpoints(self.critic.counts[1], device)
        self._gradients = compile.gradients(self.loss, self.optimizer.parameters, mode)

    # Losses. Batch fields are (S, B, ...), actions (S, B, 1); each loss is (S,).

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Eq. 4: the Bellman error and w times the gap between log-sum-exp and the data's action."""
        values = self.critic(batch.observations)
        taken = _of_action(values, batch.actions.squeeze(-1).long())
        bellman = self.bellman_loss(batch, taken)
        q = values.mean(-1)
        gap = (torch.logsumexp(q, -1) - taken.mean(-1)).mean(-1)
        loss = bellman + self.cfg.weight * gap
        return loss, {"loss": loss, "bellman_loss": bellman, "gap": gap, "q": taken.mean((1, 2))}

    def bellman_loss(self, batch: Batch, taken: Tensor) -> Tensor:
        """The taken action's numbers `(S, B, N)` towards r + discount * those of the best next action."""
        with torch.no_grad():
            following = self.target(batch.next_observations)
            chooser = self.critic(batch.next_observations) if self.cfg.double else following
            best = _of_action(following, chooser.mean(-1).argmax(-1))
            going_on = self.cfg.discount * (1 - batch.terminated)
            y = batch.rewards[..., None] + going_on[..., None] * best
        if self.cfg.critic == "mean":
            return F.huber_loss(taken, y, reduction="none", delta=self.cfg.kappa).mean((1, 2))
        return huber_quantile_loss(taken, y, self._fractions, self.cfg.kappa).mean(-1)

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """One step of Adam."""
        grads, metrics = self._gradients(batch)
        self.optimizer.step(grads)
        return metrics

    def copy_target(self) -> None:
        """Makes the target network equal to the online one."""
        optim.polyak(self.target, self.critic, 1.0)

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """The best actions by Q, `(S, n, ...) -> (S, n)`."""
        return self.critic(observations).mean(-1).argmax(-1)


def _of_action(values: Tensor, actions: Tensor) -> Tensor:
    """The rows `(S, B, N)` of `values` `(S, B, A, N)` that belong to `actions` `(S, B)`."""
    rows = actions[..., None, None].expand(-1, -1, 1, values.shape[-1])
    return values.gather(2, rows).squeeze(2)


def train(cfg: Config, run: Run) -> None:
    buffer, shape, actions = preprocessing.numbered(run, cfg.data, cfg.batch_size)
    agent = DiscreteCQL(cfg, shape, actions, run.rngs(), device=run.device, mode=run.mode)
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
