"""HRA: hybrid reward architecture (van Seijen et al. 2017, arXiv:1706.04208).

One Q-function per source of reward on shared features: each head learns its own source by Q-learning,
bootstrapping from the action that is best for that head alone, and actions are chosen by the sum of the
heads. The baseline of MD3QN's figures.

    python algos/hra.py task=maze/v0-vector steps=40000 seeds=3
    corerl train algo=hra task=atari/MsPacman steps=50000000 seeds=3

Differences
 1. MD3QN's authors ran an HRA whose files are missing from their release. Network, optimiser and
    schedule here are those of their MD3QN, the loss is DQN's Huber error (Dopamine), summed over heads.
 2. `bootstrap=total` takes one next action for all heads, the best by their sum, as RD^2 and MD3QN do
    (Lin et al. 2020). With one source both are DQN (`sources=total`).
 3. No head is given less than the whole observation (the paper's Pac-Man has a head per object).
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from corerl.buffers.frame_replay import Transitions
from corerl.config import require
from corerl.nn import compile, networks, optim
from corerl.nn.encoders import Encoder, variance_scaling
from corerl.nn.learner import Stateful
from corerl.training.collector import Collect, EpsilonGreedy, Experience
from corerl.training.run import Run


@dataclass
class Config:
    name: str = "hra"
    label: str = "HRA"

    sources: str = "all"  # all | total: one head, DQN
    bootstrap: str = "own"  # own: every head by its best action | total: by the best sum
    discount: float = 0.99
    target_every: int = 10_000  # environment steps between copies to the target network

    lr: float = 5e-5
    adam_eps: float = 0.01 / 32
    batch_size: int = 32
    hidden_layers: int = 1  # dense, after the convolutions where observations are images
    hidden_width: int = 512
    padding: str = "same"  # same (authors of MD3QN) | valid, of the convolutions
    data: Collect = field(default_factory=Collect)

    def __post_init__(self):
        require(self.sources in ("all", "total"), f"algo.sources={self.sources} unknown")
        require(self.bootstrap in ("own", "total"), f"algo.bootstrap={self.bootstrap} unknown")
        require(self.padding in ("same", "valid"), f"algo.padding={self.padding} unknown")
        require(self.hidden_layers > 0, f"algo.hidden_layers={self.hidden_layers} must be positive")
        self.data.require_turns(self.target_every)


class Heads(nn.Module):
    """Q of each of K sources for each of A actions, `(S, B, *shape) -> (S, B, A, K)`."""

    def __init__(self, cfg: Config, shape: tuple[int, ...], counts: tuple[int, int], rngs):
        super().__init__()
        init = variance_scaling(3**-0.5)
        self.encoder = Encoder(
            shape, cfg.hidden_layers, cfg.hidden_width, rngs, init=init, padding=cfg.padding
        )
        outputs = counts[0] * counts[1]
        self.head = networks.Linear(cfg.hidden_width, outputs, (len(rngs),), rngs, init)
        self.counts = counts

    def forward(self, observations: Tensor) -> Tensor:
        return self.head(self.encoder(observations)).unflatten(-1, self.counts)


class HRA(Stateful):
    """S independent learners. `shape`: of an observation; `actions`, `sources`: how many there are."""

    def __init__(
        self,
        cfg: Config,
        shape: tuple[int, ...],
        actions: int,
        sources: int,
        rngs: list[torch.Generator],
        *,
        device: torch.device | str = "cpu",
        mode: str = "off",
    ):
        self.cfg = cfg
        self.heads = Heads(cfg, shape, (actions, sources), rngs).to(device)
        self.target = optim.target_of(self.heads)
        self.optimizer = optim.Adam(self.heads.parameters(), cfg.lr, eps=cfg.adam_eps)
        self._gradients = compile.gradients(self.loss, self.optimizer.parameters, mode)

    # Losses. Batch fields are (S, B, ...); the loss is (S,).

    def loss(self, batch: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        """Every head towards its own reward + discount * its own value at the next state."""
        with torch.no_grad():
            next_values = self.target(batch.next_observations)
            if self.cfg.bootstrap == "own":
                bootstrap = next_values.amax(2)
            else:
                bootstrap = self._of(next_values, next_values.sum(-1).argmax(-1))
            y = batch.rewards + batch.discounts[..., None] * bootstrap
        values = self._of(self.heads(batch.observations), batch.actions)
        loss = F.huber_loss(values, y, reduction="none").sum(-1).mean(-1)
        return loss, {"loss": loss, "value": values.sum(-1).mean(-1)}

    @staticmethod
    def _of(values: Tensor, actions: Tensor) -> Tensor:
        """The rows `(S, B, K)` of `values` `(S, B, A, K)` that belong to `actions` `(S, B)`."""
        rows = actions[..., None, None].expand(-1, -1, 1, values.shape[-1])
        return values.gather(2, rows).squeeze(2)

    def update(self, batch: Transitions) -> dict[str, Tensor]:
        """One step of Adam."""
        grads, metrics = self._gradients(batch)
        self.optimizer.step(grads)
        return metrics

    def copy_target(self) -> None:
        """Makes the target network equal to the online one."""
        optim.polyak(self.target, self.heads, 1.0)

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """The best actions by the sum of the heads, `(S, n, ...) -> (S, n)`."""
        return self.heads(observations).sum(-1).argmax(-1)


def train(cfg: Config, run: Run) -> None:
    experience = Experience(cfg.data, run, cfg.batch_size, cfg.discount, cfg.sources == "all")
    envs, sources = experience.envs, experience.sources
    agent = HRA(
        cfg, envs.shape, envs.actions, sources, run.rngs(), device=run.device, mode=run.mode
    )
    policy = EpsilonGreedy(agent.act, cfg.data.eval_epsilon, envs.actions, run.seeds)
    update = compile.captured(agent.update, run.mode)
    for step in run.steps(
        stride=cfg.data.train_every, agent=agent, experience=experience, policy=policy
    ):
        experience.play(step, agent.act)
        if experience.enough(step):
            metrics = update(experience.sample())
            run.log(step, metrics | {"episode_return": envs.episode_returns})
        if step % cfg.target_every == 0:
            agent.copy_target()
        run.evaluate(step, policy)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
