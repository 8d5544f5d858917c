"""Behaviour cloning as NeoRL-2's benchmark has it (Gao et al. 2025, arXiv:2503.19267).

Clones by the squared error like `bc.py`. The network's output is the action, and the policy of the epoch
with the lowest error on a validation file plays.

    corerl train algo=bc_neorl2 task=neorl2/DMSD seeds=[7,42,210]

The reference is the benchmark's code, offlinerl 0.0.2. It regresses a Gaussian's mean through leaky ReLUs on
raw states. Difference: its second output, a log-std, takes no part in the loss and is left out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from corerl.algos import bc
from corerl.config import at_least, group, positive, require, within
from corerl.nn import compile, optim
from corerl.nn.learner import Spec
from corerl.training import preprocessing
from corerl.training.run import Run


@dataclass
class Config(bc.Config):
    actions = "continuous"
    name: str = "bc_neorl2"

    lr: float = positive(1e-3)
    leak: float = within(0.1, "[0, 1)")  # slope of the leaky ReLU below 0
    validate_every: int = at_least(0, 1000)  # updates between validations (0: last policy plays)
    data: preprocessing.Preprocess = group(preprocessing.Preprocess)

    @property
    def mlp_options(self) -> dict[str, Any]:
        """Returns the options of `MLP`, where a ReLU leaks."""
        options = super().mlp_options
        if self.activation == "relu":
            options["activation"] = partial(F.leaky_relu, negative_slope=self.leak)
        return options


class BestPolicy(nn.Module):
    """The policy of each of S seeds whose error was the lowest so far. That error and its step `(S,)`."""

    def __init__(self, policy: nn.Module, seeds: int):
        super().__init__()
        self.policy = optim.target_of(policy)
        self.register_buffer("lowest", torch.full((seeds,), torch.inf))
        self.register_buffer("step", torch.zeros(seeds, dtype=torch.int64))

    @torch.no_grad()
    def offer(self, policy: nn.Module, error: Tensor, step: int) -> None:
        """Keeps `policy` for each seed whose `error` `(S,)` is a new lowest."""
        better = error < self.lowest
        self.lowest.copy_(torch.where(better, error, self.lowest))
        self.step.masked_fill_(better, step)
        for kept, new in zip(self.policy.parameters(), policy.parameters(), strict=True):
            kept.copy_(torch.where(better.view(-1, *[1] * (new.ndim - 1)), new, kept))


@torch.no_grad()
def squared_error(
    act: Callable[[Tensor], Tensor], observations: Tensor, actions: Tensor, batch_size: int
) -> Tensor:
    """Returns the mean squared error `(S,)` of `act: (1, n, O) -> (S, n, A)` on `(N, O)` and `(N, A)`.

    It is the mean over batches in the file's order. A shorter last batch counts as much as the others
    (offlinerl 0.0.2).
    """
    pairs = zip(observations.split(batch_size), actions.split(batch_size), strict=True)
    errors = [(act(o[None]) - a).square().mean((1, 2)) for o, a in pairs]
    return torch.stack(errors).mean(0)


class ValidatedBC(bc.BC):
    """NeoRL-2's BC agents of S seeds. Each keeps its best policy."""

    def __init__(self, cfg: Config, spec: Spec):
        super().__init__(cfg, spec)
        self.chosen = None
        if cfg.validate_every:
            self.chosen = BestPolicy(self.policy, spec.seeds).to(spec.device)
        self.batch_size = cfg.batch_size

    def action(self, output: Tensor) -> Tensor:
        """Returns a network's output. The simulator clips it."""
        return output

    def validate(self, step: int, observations: Tensor, actions: Tensor) -> None:
        """Keeps each seed's policy if its squared error on `(N, O)`, `(N, A)` is a new lowest."""
        error = squared_error(super().act, observations, actions, self.batch_size)
        self.chosen.offer(self.policy, error, step)

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """Returns the best policy's action at raw observations, `(S, n, O) -> (S, n, A)`."""
        policy = self.chosen.policy if self.chosen else self.policy
        return self.action(policy(self.normalizer(observations)))


build = ValidatedBC


def train(cfg: Config, run: Run) -> None:
    every, steps = cfg.validate_every, run.cfg.steps
    require(steps >= every, f"algo.validate_every={every} must be at most steps={steps}")
    buffer, normalizer = preprocessing.load(
        run, cfg.data, cfg.batch_size, best=cfg.best, best_discount=cfg.best_discount
    )
    agent = ValidatedBC(cfg, run.spec(buffer, normalizer))
    validation = held_out(run) if every else ()
    update = compile.captured(agent.update, run.mode)
    for step in run.steps(agent=agent, buffer=buffer):
        metrics = update(buffer.sample())
        if every and step % every == 0:
            agent.validate(step, *validation)
        run.log(step, metrics)
        run.evaluate(step, agent.act)
        run.save(step)


def held_out(run: Run) -> tuple[Tensor, Tensor]:
    """Returns observations `(N, O)` and actions `(N, A)` of the task's validation file, as recorded.

    Raises:
        CorerlError: the collection has no such file.
    """
    dataset = run.task.load("val")
    arrays = (dataset.observations, dataset.actions)
    return tuple(torch.from_numpy(array).to(run.device) for array in arrays)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
