"""Behaviour cloning, and %BC: cloning the best episodes only (Chen et al. 2021, section 5.1).

A tanh policy regressed to the data's actions by mean squared error. Every offline method has to beat it.

    python algos/bc.py task=corerl/pendulum steps=20000 seeds=3
    corerl train algo=bc algo.best=0.1 label="10% BC" task=d4rl/hopper-medium-v2 seeds=10

Differences. There is no paper of plain BC; CORL's is the reference, as it made the numbers in use:
 1. CORL passes the data through its 10 %-filter also for `best=1`, which loses the last episode's tail;
    here `best=1` is the whole dataset.
 2. The filter keeps a share of the episodes (CORL). The Decision Transformer's authors keep episodes,
    best first, up to a share of the time steps.
 3. Episodes end where they truly end; CORL cuts at 1000 rows and drifts by a row per timed-out episode.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from corerl.buffers.replay import Batch
from corerl.config import require
from corerl.nn import compile, networks, optim
from corerl.runs.checkpoint import Stateful
from corerl.training import preprocessing
from corerl.training.run import Run


@dataclass
class Config:
    name: str = "bc"
    label: str = "BC"

    best: float = 1.0  # share of episodes to clone, highest return first; 0.1 is "10% BC"
    lr: float = 3e-4
    batch_size: int = 256
    hidden_layers: int = 2
    hidden_width: int = 256
    data: preprocessing.Preprocess = field(
        default_factory=lambda: preprocessing.Preprocess(normalize_states=True)
    )

    def __post_init__(self):
        require(0 < self.best <= 1, f"algo.best={self.best} must lie in (0, 1]")


class BC(Stateful):
    """S independent learners. `observation_dim`, `action_dim`: features; `rngs`: one per seed."""

    def __init__(
        self,
        cfg: Config,
        observation_dim: int,
        action_dim: int,
        rngs: list[torch.Generator],
        *,
        normalizer: networks.Normalizer | None = None,
        device: torch.device | str = "cpu",
        mode: str = "off",
    ):
        sizes = [observation_dim, *[cfg.hidden_width] * cfg.hidden_layers, action_dim]
        self.policy = networks.MLP(sizes, (len(rngs),), rngs).to(device)
        self.normalizer = normalizer or nn.Identity()
        self.optimizer = optim.Adam(self.policy.parameters(), cfg.lr)
        self._gradients = compile.gradients(self.loss, self.optimizer.parameters, mode)

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Squared error, mean over batch and action dimensions."""
        error = torch.tanh(self.policy(batch.observations)) - batch.actions
        loss = error.square().mean((1, 2))
        return loss, {"policy_loss": loss}

    def update(self, batch: Batch) -> dict[str, Tensor]:
        grads, metrics = self._gradients(batch)
        self.optimizer.step(grads)
        return metrics

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """The action at raw observations, `(S, n, O) -> (S, n, A)`."""
        return torch.tanh(self.policy(self.normalizer(observations)))


def train(cfg: Config, run: Run) -> None:
    buffer, normalizer = preprocessing.load(run, cfg.data, cfg.batch_size, best=cfg.best)
    agent = BC(
        cfg,
        buffer.observation_dim,
        buffer.action_dim,
        run.rngs(),
        normalizer=normalizer,
        device=run.device,
        mode=run.mode,
    )
    update = compile.captured(agent.update, run.mode)
    for step in run.steps(agent=agent, buffer=buffer):
        metrics = update(buffer.sample())
        run.log(step, metrics)
        run.evaluate(step, agent.act)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
