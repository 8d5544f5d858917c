"""Behaviour cloning, and %BC: cloning the best episodes only (Chen et al. 2021, section 5.1).

A tanh policy regressed to the data's actions by mean squared error, or where actions are discrete by the
cross-entropy of their logits. Every offline method has to beat it.

    python algos/bc.py task=corerl/pendulum steps=20000 seeds=3
    python algos/bc.py task=corerl/cartpole steps=5000 seeds=3
    corerl train algo=bc algo.best=0.1 label="10% BC" task=d4rl/hopper-medium-v2 seeds=10

Differences. There is no paper of plain BC; CORL's is the reference, as it made the numbers in use:
 1. CORL passes the data through its 10 %-filter also for `best=1`, which loses the last episode's tail;
    here `best=1` is the whole dataset.
 2. The filter keeps a share of the episodes (CORL). The Decision Transformer's authors keep episodes,
    best first, up to a share of the time steps. CORL's own scores on Gym and Maze2d are of episodes ranked
    by returns discounted at 0.99, `best_discount` in `algo=bc_10`; its files have 1 since.
 3. Episodes end where they truly end; CORL cuts at 1000 rows and drifts by a row per timed-out episode.

NeoRL-2's BC, with a policy chosen on a validation file, is `bc_neorl2`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from corerl.buffers.replay import Batch
from corerl.config import added, at_least, group, positive, require, within
from corerl.nn import compile, networks, optim
from corerl.nn.learner import GradientStep, Spec, Stateful
from corerl.nn.mlp_settings import MLPSettings
from corerl.nn.policies import categorical_log_prob
from corerl.training import preprocessing
from corerl.training.run import Run


@dataclass
class Config(MLPSettings):
    actions = "any"
    name: str = "bc"
    label: str = "BC"

    best: float = within(1.0, "(0, 1]")  # clones this best share of episodes (0.1: "10% BC")
    best_discount: float = added(within(1.0, "[0, 1]"))  # discount of returns that rank episodes
    lr: float = positive(3e-4)
    batch_size: int = positive(256)
    hidden_layers: int = at_least(0, 2)
    hidden_width: int = positive(256)
    data: preprocessing.Preprocess = group(preprocessing.Preprocess, normalize_states=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.best < 1 or self.best_discount == 1,
            f"algo.best_discount={self.best_discount} ranks episodes, but algo.best=1 keeps all "
            "of them. Leave one of the two out",
        )


class BC(Stateful):
    """BC agents of S seeds, trained together."""

    def __init__(self, cfg: Config, spec: Spec):
        sizes = [spec.observation_dim, *[cfg.hidden_width] * cfg.hidden_layers, spec.action_dim]
        self.policy = networks.MLP(sizes, spec.lead, spec.rngs, **cfg.mlp_options).to(spec.device)
        self.normalizer = spec.normalizer
        self.discrete = spec.discrete
        self.optimizer = optim.Adam(self.policy.parameters(), cfg.lr)
        self._step = GradientStep(self.loss, self.optimizer, spec.mode)

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes the squared error, or the cross-entropy of discrete actions, over batch and dimensions."""
        if self.discrete:
            logits = self.policy(batch.observations)
            loss = -categorical_log_prob(logits, batch.actions).mean(-1)
            return loss, {"policy_loss": loss}
        error = self.action(self.policy(batch.observations)) - batch.actions
        loss = error.square().mean((1, 2))
        return loss, {"policy_loss": loss}

    def action(self, output: Tensor) -> Tensor:
        """Returns the action that a network's output stands for."""
        return output.argmax(-1) if self.discrete else torch.tanh(output)

    def update(self, batch: Batch) -> dict[str, Tensor]:
        return self._step(batch)

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """Returns the action at raw observations, `(S, n, O) -> (S, n, A)`. Numbers `(S, n)`."""
        return self.action(self.policy(self.normalizer(observations)))


build = BC


def train(cfg: Config, run: Run) -> None:
    buffer, normalizer = preprocessing.load(
        run, cfg.data, cfg.batch_size, best=cfg.best, best_discount=cfg.best_discount
    )
    agent = BC(cfg, run.spec(buffer, normalizer))
    update = compile.captured(agent.update, run.mode)
    for step in run.steps(agent=agent, buffer=buffer):
        run.log(step, update(buffer.sample()))
        run.evaluate(step, agent.act)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
