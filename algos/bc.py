"""Behaviour cloning, and %BC: cloning the best episodes only (Chen et al. 2021, section 5.1).

A tanh policy regressed to the data's actions by mean squared error. Every offline method has to beat it.

    python algos/bc.py task=corerl/pendulum steps=20000 seeds=3
    corerl train algo=bc algo.best=0.1 label="10% BC" task=d4rl/hopper-medium-v2 seeds=10
    corerl train algo=bc_neorl2 task=neorl2/DMSD seeds=[7,42,210]

Differences. There is no paper of plain BC; CORL's is the reference, as it made the numbers in use:
 1. CORL passes the data through its 10 %-filter also for `best=1`, which loses the last episode's tail;
    here `best=1` is the whole dataset.
 2. The filter keeps a share of the episodes (CORL). The Decision Transformer's authors keep episodes,
    best first, up to a share of the time steps.
 3. Episodes end where they truly end; CORL cuts at 1000 rows and drifts by a row per timed-out episode.

NeoRL-2's BC (`algo=bc_neorl2`; Gao et al. 2025, its code is offlinerl 0.0.2) regresses a Gaussian's mean
without a tanh, through leaky ReLUs on raw states, and plays the policy of the epoch whose error on a
validation file was lowest: `squash`, `leak` and `validate_every`. Its second output, a log-std, takes no
part in the loss and is left out.
"""

from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from corerl.buffers.replay import Batch
from corerl.config import later, require
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
    leak: float = later(0.0)  # slope of a hidden unit below 0
    squash: bool = later(True)  # tanh on the output; false: the mean, which the simulator clips
    validate_every: int = later(0)  # updates from one look at held-out data to the next; the best
    # policy so far is played. 0: the last one is
    data: preprocessing.Preprocess = field(
        default_factory=lambda: preprocessing.Preprocess(normalize_states=True)
    )

    def __post_init__(self):
        require(0 < self.best <= 1, f"algo.best={self.best} must lie in (0, 1]")
        require(0 <= self.leak < 1, f"algo.leak={self.leak} must lie in [0, 1)")
        every = self.validate_every
        require(every >= 0, f"algo.validate_every={every} must not be negative")


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
        hidden = partial(F.leaky_relu, negative_slope=cfg.leak) if cfg.leak else F.relu
        self.policy = networks.MLP(sizes, (len(rngs),), rngs, activation=hidden).to(device)
        self.normalizer = normalizer or nn.Identity()
        self.squash = cfg.squash
        self.chosen = Chosen(self.policy, len(rngs)).to(device) if cfg.validate_every else None
        self.optimizer = optim.Adam(self.policy.parameters(), cfg.lr)
        self._gradients = compile.gradients(self.loss, self.optimizer.parameters, mode)

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Squared error, mean over batch and action dimensions."""
        error = self._action(self.policy, batch.observations) - batch.actions
        loss = error.square().mean((1, 2))
        return loss, {"policy_loss": loss}

    def _action(self, policy: nn.Module, observations: Tensor) -> Tensor:
        output = policy(observations)
        return torch.tanh(output) if self.squash else output

    def update(self, batch: Batch) -> dict[str, Tensor]:
        grads, metrics = self._gradients(batch)
        self.optimizer.step(grads)
        return metrics

    @torch.no_grad()
    def validate(self, step: int, observations: Tensor, actions: Tensor, batch_size: int) -> None:
        """Keeps, for each seed, the policy if its squared error on `(N, O)`, `(N, A)` is a new lowest.

        The error is the mean of those of batches in the file's order, of which a shorter last one
        counts as much as the others (offlinerl).
        """
        pairs = zip(observations.split(batch_size), actions.split(batch_size), strict=True)
        errors = [self._action(self.policy, self.normalizer(o[None])) - a for o, a in pairs]
        error = torch.stack([e.square().mean((1, 2)) for e in errors]).mean(0)
        self.chosen.offer(self.policy, error, step)

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """The action at raw observations, `(S, n, O) -> (S, n, A)`."""
        policy = self.chosen.policy if self.chosen else self.policy
        return self._action(policy, self.normalizer(observations))


class Chosen(nn.Module):
    """The policy of each of S seeds whose error was the lowest so far; that error and its step `(S,)`."""

    def __init__(self, policy: nn.Module, seeds: int):
        super().__init__()
        self.policy = optim.target_of(policy)
        self.register_buffer("lowest", torch.full((seeds,), torch.inf))
        self.register_buffer("step", torch.zeros(seeds, dtype=torch.int64))

    @torch.no_grad()
    def offer(self, policy: nn.Module, error: Tensor, step: int) -> None:
        better = error < self.lowest
        self.lowest.copy_(torch.where(better, error, self.lowest))
        self.step.masked_fill_(better, step)
        for kept, new in zip(self.policy.parameters(), policy.parameters(), strict=True):
            kept.copy_(torch.where(better.view(-1, *[1] * (new.ndim - 1)), new, kept))


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
    every = cfg.validate_every
    held_out = preprocessing.held_out(run) if every else ()
    require(
        run.cfg.steps >= every, f"algo.validate_every={every} is more than steps={run.cfg.steps}"
    )
    update = compile.captured(agent.update, run.mode)
    for step in run.steps(agent=agent, buffer=buffer):
        metrics = update(buffer.sample())
        if every and step % every == 0:
            agent.validate(step, *held_out, cfg.batch_size)
        run.log(step, metrics)
        run.evaluate(step, agent.act)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
