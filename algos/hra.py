"""HRA: hybrid reward architecture (van Seijen et al. 2017, arXiv:1706.04208).

One Q-function per source of reward on shared features: each head learns its own source by Q-learning,
bootstrapping from the action that is best for that head alone, and actions are chosen by the sum of the
heads. The baseline of MD3QN's figures.

    python algos/hra.py task=maze/v0-vector steps=40000 seeds=3
    corerl train algo=hra task=atari/MsPacman steps=50000000 seeds=3

Differences
 1. MD3QN's authors ran an HRA of which their release has the network alone (`HADQNNetwork`). It is the one
    here but for its first weights, Keras' Glorot ones there, MD3QN's here; optimiser and schedule are those
    of their MD3QN, the loss is DQN's Huber error (Dopamine), summed over heads.
 2. `bootstrap=total` takes one next action for all heads, the best by their sum, as RD^2 and MD3QN do
    (Lin et al. 2020). With one source both are DQN (`sources=total`).
 3. No head is given less than the whole observation (the paper's Pac-Man has a head per object).
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from corerl.buffers.frame_replay import Transitions
from corerl.config import one_of
from corerl.nn import optim
from corerl.nn.critics import action_values, gather_actions
from corerl.nn.learner import GradientStep, Spec, Stateful
from corerl.nn.networks import variance_scaling
from corerl.training import deep_q
from corerl.training.deep_q import DeepQ, learn
from corerl.training.experience import Experience
from corerl.training.run import Run


@dataclass
class Config(DeepQ):
    name: str = "hra"
    label: str = "HRA"

    sources: str = one_of("all", "total")  # all (a head per reward source) | total (one head, DQN)
    bootstrap: str = one_of("own", "total")  # own (each head's best action) | total (best of sum)
    padding: str = one_of("same", "valid")  # convolutions' padding, same (MD3QN's authors) | valid


class HRA(Stateful):
    """HRA agents of S seeds, with a head for each of K sources for every action."""

    def __init__(self, cfg: Config, spec: Spec):
        self.cfg = cfg
        init = variance_scaling(3**-0.5)
        self.heads = action_values(cfg, spec, spec.sources, init=init, padding=cfg.padding)
        self.target = optim.target_of(self.heads)
        self.optimizer = optim.Adam(self.heads.parameters(), cfg.lr, eps=cfg.adam_eps)
        self._step = GradientStep(self.loss, self.optimizer, spec.mode)

    # Losses. Batch fields are (S, B, ...); the loss is (S,).

    def loss(self, batch: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        """Regresses every head towards its own reward + discount * its own value at the next state."""
        with torch.no_grad():
            next_values = self.target(batch.next_observations)
            if self.cfg.bootstrap == "own":
                bootstrap = next_values.amax(2)
            else:
                bootstrap = gather_actions(next_values, next_values.sum(-1).argmax(-1))
            y = batch.rewards + batch.discounts[..., None] * bootstrap
        values = gather_actions(self.heads(batch.observations), batch.actions)
        loss = F.huber_loss(values, y, reduction="none").sum(-1).mean(-1)
        return loss, {"loss": loss, "value": values.sum(-1).mean(-1)}

    def update(self, batch: Transitions) -> dict[str, Tensor]:
        """Takes one step of Adam."""
        return self._step(batch)

    def copy_target(self) -> None:
        """Makes the target network equal to the online one."""
        optim.polyak(self.target, self.heads, 1.0)

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """Returns the best actions by the sum of the heads, `(S, n, ...) -> (S, n)`."""
        return self.heads(observations).sum(-1).argmax(-1)


build = HRA
parts = deep_q.parts


def train(cfg: Config, run: Run) -> None:
    experience = Experience(cfg.data, run, cfg.batch_size, cfg.discount, cfg.sources == "all")
    agent = HRA(cfg, run.spec(experience))
    learn(cfg, run, agent, experience)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
