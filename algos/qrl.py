"""QRL: quasimetric RL (Wang, Torralba, Isola and Zhang 2023, arXiv:2304.01203).

The value of a goal is minus the distance to it, and a network computes distances that keep the triangle
inequality by construction. All pairs are pushed apart, while one recorded step must not be longer than 1.
What remains is the length of the shortest way.

    python algos/qrl.py task=corerl/goal-maze steps=20000 seeds=3 algo.hidden_width=64 algo.latent_dim=64
    corerl train algo=qrl task=ogbench/pointmaze-medium-navigate-v0 seeds=8

The losses, with d the distance of embeddings phi, a dynamics network f, and lambda's gradient upwards:

    distance  mean 100 softplus(5 - d(s, g) / 100) + lambda * c,  c = mean max(d(s, s') - 1, 0)^2
    lambda    lambda * (eps - c)
    dynamics  (d(phi', z) + d(z, phi')) / 2,  z = phi(s) + f(phi(s), a),  phi' = phi(s')
    policy    ddpg_bc:  d(z, phi(g)) / mean |d| - alpha log pi(a | s, g),  z of the policy's mean, clipped
              awr:      -min(exp(alpha (d(s, g) - d(s', g))), 100) log pi(a | s, g)

Ours is OGBench's code (seohongpark/ogbench at 1d41409), which made the published numbers.

    item                ours, OGBench                             else
 1  the constraint      its mean square is held at eps: where     paper: no step longer than 1
                        all steps are alike, each measures
                        1 + sqrt(eps) = 1.22
 2  horizon             100 and 5: beyond 500 steps the push      -
                        fades, as in the giant mazes
 3  discount            plays no part; it shapes the goals' law   -
 4  phi                 learns from the dynamics' loss, too       paper: apart
                        (there is none with `actor_loss=awr`)
 5  random steps        the distance becomes that of luck         paper: deterministic
 6  groups              of 8 intervals, `quasimetric=iqe`         mrn
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from corerl.buffers.goals import GoalBatch, Goals
from corerl.config import at_least, group, one_of, positive, require
from corerl.nn import compile, extraction, optim
from corerl.nn.acting import PolicyActing
from corerl.nn.learner import GradientStep, Spec
from corerl.nn.networks import MLP, Scalar
from corerl.training import goals
from corerl.training.run import Run

FAR, STEEP = 500.0, 100.0
"""The distance at which the push has fallen to its half, and over which it falls."""
GROUP = 8
"""Intervals in each group of IQE."""


@dataclass
class Config(goals.GoalSettings):
    name: str = "qrl"
    label: str = "QRL"

    quasimetric: str = one_of("iqe", "mrn")  # iqe (interval embeddings) | mrn (metric residual)
    latent_dim: int = positive(512)  # size of the state embedding phi
    eps: float = at_least(  # limit on the mean of max(d - 1, 0)^2, where d is a step's distance
        0, 0.05
    )
    actor_loss: str = one_of("ddpg_bc", "awr")  # ddpg_bc (Q plus cloning) | awr (weighted cloning)
    alpha: float = at_least(0, 0.003)  # weight of cloning (ddpg_bc) or inverse temperature (awr)
    goals: Goals = group(Goals, value_p_curgoal=0.0, value_p_randomgoal=1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        parts = 2 if self.quasimetric == "mrn" else GROUP
        require(
            self.latent_dim % parts == 0,
            f"algo.latent_dim={self.latent_dim} must be a multiple of {parts} with "
            f"algo.quasimetric={self.quasimetric}",
        )


class QRL(PolicyActing):
    """QRL agents of S seeds, trained together."""

    def __init__(self, cfg: Config, spec: Spec):
        self.cfg, self.normalizer = cfg, goals.Shown(spec)
        sizes = goals.Sizes.of(spec)
        goals.check_whole_states(cfg, sizes)
        ends = [*cfg.hidden, cfg.latent_dim]
        options, device = cfg.value_options, spec.device
        distance = Quasimetric([sizes.state, *ends], cfg.quasimetric, spec.rngs, **options)
        self.distance = distance.to(device)
        self.dynamics = None
        if cfg.actor_loss == "ddpg_bc":
            inputs = [cfg.latent_dim + sizes.action, *ends]
            self.dynamics = MLP(inputs, spec.lead, spec.rngs, **options).to(device)
        self.log_lambda = Scalar(0.0, spec.seeds).to(device)
        self.policy = goals.policy(cfg, spec)
        parts = [self.distance, self.log_lambda, self.dynamics, self.policy]
        self.optimizers = [optim.Adam(part.parameters(), cfg.lr) for part in parts if part]
        *values, policy = self.optimizers
        self._distance_step = GradientStep(self.distance_loss, values, spec.mode)
        self._policy_step = GradientStep(self.policy_loss, policy, spec.mode)

    # Losses. Batch fields are (S, B, ...); each loss is (S,).

    def distance_loss(self, batch: GoalBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Pushes states and goals apart, holds steps at 1, and fits lambda and the dynamics."""
        embed, distance = self.distance.embed, self.distance
        here, after, goal = map(
            embed, (batch.observations, batch.next_observations, batch.value_goals)
        )
        far, step = distance(here, goal), distance(here, after)
        push = STEEP * F.softplus((FAR - far) / STEEP).mean(-1)
        over = (step - 1).relu().square().mean(-1)
        price = self.log_lambda().exp()
        bound = price.detach() * over + price * (self.cfg.eps - over.detach())
        metrics = {"distance": far.mean(-1), "step_length": step.mean(-1), "lambda": price}
        metrics |= {"push": push}
        if self.dynamics is None:
            return push + bound, metrics
        foreseen = self._ahead(here, batch.actions)
        dynamics = (distance(after, foreseen) + distance(foreseen, after)).mean(-1) / 2
        return push + bound + dynamics, metrics | {"dynamics_loss": dynamics}

    def policy_loss(self, batch: GoalBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Goes where the dynamics come nearest to the goal, or imitates steps that come nearer."""
        inputs = goals.beside(batch.observations, batch.actor_goals)
        states = batch.observations, batch.next_observations, batch.actor_goals
        with torch.no_grad():
            here, after, goal = map(self.distance.embed, states)
        if self.cfg.actor_loss == "awr":
            with torch.no_grad():
                nearer = self.distance(here, goal) - self.distance(after, goal)
            return extraction.awr(self.policy, inputs, batch.actions, nearer, self.cfg.alpha)

        def q_of(actions: Tensor) -> Tensor:
            return -self.distance(self._ahead(here, actions), goal)

        return extraction.ddpg_bc(self.policy, inputs, batch.actions, q_of, self.cfg.alpha)

    def _ahead(self, here: Tensor, actions: Tensor) -> Tensor:
        """Returns the embedding that an action is thought to lead to, `(S, B, d)`."""
        return here + self.dynamics(torch.cat([here, actions], -1))

    def update(self, batch: GoalBatch) -> dict[str, Tensor]:
        """Takes one step of everything, along gradients at its start."""
        distance, metrics = self._distance_step.gradients(batch)
        policy, others = self._policy_step.gradients(batch)
        self._distance_step.apply(distance)
        self._policy_step.apply(policy)
        return metrics | others


class Quasimetric(nn.Module):
    """An embedding of states and a distance between embeddings, `(S, B, D)` twice to `(S, B)`.

    IQE is of Wang and Isola 2022 (arXiv:2211.15120), MRN of Liu et al. 2023 (arXiv:2208.08133). A distance
    need not be the same there and back.

    Args:
        sizes: features of the state, of each hidden layer, and of the embedding.
        kind: `iqe`, a mix of mean and maximum over groups, with a learned share; or `mrn`.
        rngs, others: as for `MLP`.
    """

    def __init__(self, sizes: Sequence[int], kind: str, rngs: Sequence[torch.Generator], **others):
        super().__init__()
        self.embed = MLP(sizes, (len(rngs),), rngs, **others)
        self.share = Scalar(0.0, len(rngs)) if kind == "iqe" else None

    def forward(self, here: Tensor, there: Tensor) -> Tensor:
        if self.share is None:
            return mrn(here, there)
        lengths = union_lengths(*(x.unflatten(-1, (-1, GROUP)) for x in (here, there)))
        share = torch.sigmoid(self.share())[:, None]
        return share * lengths.mean(-1) + (1 - share) * lengths.amax(-1)


def union_lengths(low: Tensor, high: Tensor) -> Tensor:
    """Returns the lengths `(...)` of the unions of the intervals from `low` to `high`, `(..., n)`.

    An interval whose end is below its start is empty.
    """
    points, order = torch.cat([low, high], -1).sort(-1)
    full = (low < high).to(low.dtype)
    opened = torch.cat([full, -full], -1).gather(-1, order).cumsum(-1)[..., :-1]
    return ((points[..., 1:] - points[..., :-1]) * (opened > 0.5)).sum(-1)


def mrn(here: Tensor, there: Tensor) -> Tensor:
    """Returns the Euclidean distance of the first half plus the largest fall of the second."""
    near, far = here.chunk(2, -1), there.chunk(2, -1)
    euclid = (near[0] - far[0]).square().sum(-1).clamp(min=1e-12).sqrt()
    return euclid + (near[1] - far[1]).amax(-1).relu()


build = QRL


def train(cfg: Config, run: Run) -> None:
    buffer = goals.load(run, cfg)
    agent = QRL(cfg, goals.spec(run, buffer))
    update = compile.captured(agent.update, run.mode)
    for step in run.steps(agent=agent, buffer=buffer):
        run.log(step, update(buffer.sample()))
        run.evaluate(step, agent.act)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
