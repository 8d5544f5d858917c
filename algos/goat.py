"""GOAT: goals that no recording reached (Yang et al. 2023, arXiv:2305.18882), and WGCSL (2202.04478).

The policy clones actions towards states that the episode reaches later. A row weighs more where critics find
its action better than the policy's, and still more where this advantage is among the largest of late. It also
weighs more where the critics disagree. Without the last it is WGCSL (`algo=wgcsl`). With equal weights it is
GCBC with a tanh (GCSL).

    python algos/goat.py task=corerl/goal-maze steps=20000 seeds=3 algo.hidden_width=64
    corerl train -m algo=goat,wgcsl,gcbc task=corerl/goal-maze-stitch seeds=3

The losses, with N critics Q_j, their mean Q, and targets Q'_j and pi'. The reward r is 1 where s' is at most
`radius` from the goal g, else 0:

    critics     sum_j (Q_j(s, g, a) - y_j)^2
    target      y_j = min(r + discount Q'_j(s', g, pi'(s', g)), 1 / (1 - discount))
    advantage   A = r + discount Q(s', g, pi(s', g)) - Q(s, g, pi(s, g))
    weight      w = min(exp(beta A), limit) * (1 if A is in the top, else `rest`) * factor
    factor      min(uncertainty u + least, most)
    policy      w (a - tanh pi(s, g))^2

A is in the top if it reaches a percentile of the last `recent` advantages. The percentile rises by `rise`
with every update, up to `top`. The standard deviation of Q_j(s, g, pi(s, g)) over j is u, scaled to [0, 1] by
the smallest and largest of the last 10,000.

Ours is the authors' code (YangRui2015/GOAT at 278a02b).

    item                authors                                   ours                      switch
 1  the top             beta A against the percentile of A, for   either                    top_of
                        A is doubled in place
 2  uncertainty         their command asks for `tanstd`. No       linear                    -
                        branch knows it, so it is linear
 3  its factor, limit   1.5 and 1 on the command line, which      1.5 and 1                 uncertainty,
                        counts, 1 and 1.5 in config.py                                      most
 4  expectile           `goat_ER` weighs positive errors by       of positive errors        expectile
                        1 - tau, and tau is 0.5 by default
 5  targets             0.05 of the new after 20 updates          0.0026 after each         polyak
 6  inputs              normalised by running statistics          as they are               -
 7  goals               the next state too, each later one alike  those of GCBC             -
 8  weight of WGCSL     its paper: also discount^(steps to g)     as in GOAT's comparison   -
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from corerl.buffers.goals import GoalBatch, Goals
from corerl.config import at_least, group, one_of, positive, require, within
from corerl.nn import compile, networks, optim
from corerl.nn.acting import TanhActing
from corerl.nn.critics import Critics
from corerl.nn.learner import GradientStep, Spec
from corerl.nn.mlp_settings import activation
from corerl.training import goals
from corerl.training.run import Run

SPREADS = 10_000
"""Standard deviations that are remembered."""


@dataclass
class Config(goals.GoalSettings):
    name: str = "goat"
    label: str = "GOAT"

    critics: int = positive(5)  # N, number of critics
    beta: float = at_least(0, 2.0)  # factor of the advantage A in the weight exp(beta A)
    limit: float = positive(10.0)  # largest exp(beta A) in the weight of a row
    top: float = within(80.0, "[0, 100]")  # final percentile of A above which rows keep full weight
    rise: float = at_least(0, 0.01)  # rise of the percentile of A per update, until it is top
    rest: float = within(0.05, "[0, 1]")  # factor of the weight of rows below the percentile of A
    top_of: str = one_of(  # rows ranked by scaled (beta * A, code) | advantage (A, paper)
        "scaled", "advantage"
    )
    recent: int = positive(50_000)  # number of latest advantages that give the percentile
    uncertainty: float = at_least(0, 1.5)  # weight of the critics' disagreement (0: WGCSL)
    least: float = at_least(0, 0.5)  # smallest weight factor from the critics' disagreement
    most: float = positive(1.0)  # largest weight factor from the critics' disagreement
    expectile: float = within(0.5, "(0, 1)")  # expectile of the critics' errors (0.5: mean)
    radius: float = at_least(0, 0.05)  # distance at which a goal counts as reached

    discount: float = within(0.98, "(0, 1)")
    polyak: float = within(0.0026, "[0, 1]")  # share of new weights in targets, every update
    lr: float = positive(5e-4)
    batch_size: int = positive(512)
    hidden_width: int = positive(256)
    activation: str = activation("relu")
    value_layer_norm: bool = False
    goals: Goals = group(Goals, value_p_curgoal=0.0, value_p_randomgoal=0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.recent >= self.batch_size,
            f"algo.recent={self.recent} must be at least algo.batch_size={self.batch_size}, so that it "
            "can hold the advantages of an update",
        )


class GOAT(TanhActing):
    """GOAT agents of S seeds, trained together."""

    def __init__(self, cfg: Config, spec: Spec):
        self.cfg, self.normalizer = cfg, goals.Shown(spec)
        self.sizes = goals.Sizes.of(spec)
        shown, action, rngs = spec.observation_dim, self.sizes.action, spec.rngs
        critic = Critics([shown, action, *cfg.hidden], rngs, cfg.critics, **cfg.value_options)
        options = cfg.mlp_options | {"init": networks.xavier()}
        actor = networks.MLP([shown, *cfg.hidden, action], spec.lead, rngs, **options)
        self.critic, self.actor = critic.to(spec.device), actor.to(spec.device)
        self.targets = nn.ModuleList(map(optim.target_of, (self.critic, self.actor)))
        self.advantages = Recent(spec.seeds, cfg.recent).to(spec.device)
        self.spreads = Recent(spec.seeds, max(SPREADS, cfg.batch_size)).to(spec.device)
        self.critic_optimizer = optim.Adam(self.critic.parameters(), cfg.lr)
        self.actor_optimizer = optim.Adam(self.actor.parameters(), cfg.lr)
        optimizers = self.critic_optimizer, self.actor_optimizer
        self._step = GradientStep(self.loss, optimizers, spec.mode)

    # Batch fields are (S, B, ...); each loss is (S,).

    def reached(self, batch: GoalBatch) -> Tensor:
        """Returns 1.0 where the next state is at the goal, `(S, B)`."""
        after = batch.next_observations
        achieved = self.normalizer(goals.beside(after, after))[..., self.sizes.state :]
        distance = (achieved - batch.actor_goals).square().sum(-1).sqrt()
        return (distance <= self.cfg.radius).to(distance.dtype)

    @torch.no_grad()
    def weigh(self, batch: GoalBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the weights of the batch `(S, B)`. It remembers their advantages and spreads."""
        cfg = self.cfg
        states = torch.cat([batch.observations, batch.next_observations], 1)
        inputs = goals.beside(states, batch.actor_goals.repeat(1, 2, 1))
        q, after = self.critic(inputs, torch.tanh(self.actor(inputs))).chunk(2, -1)
        advantage = self.reached(batch) + cfg.discount * after.mean(1) - q.mean(1)
        self.advantages.add(advantage)
        percent = (cfg.rise * self.advantages.additions).clamp(max=cfg.top)
        scaled = cfg.beta * advantage
        compared = scaled if cfg.top_of == "scaled" else advantage
        best = compared >= self.advantages.percentile(percent)[:, None]
        by_advantage = torch.exp(scaled).clamp(max=cfg.limit) * torch.where(best, 1.0, cfg.rest)
        spread = self.spreads.scaled(q.std(1, correction=0))
        by_spread = (cfg.uncertainty * spread + cfg.least).clamp(max=cfg.most)
        metrics = {"advantage": advantage.mean(-1), "top": best.to(q.dtype).mean(-1)}
        return by_advantage * by_spread, metrics

    def loss(self, batch: GoalBatch, weight: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Adds the losses of critics and policy, which share no parameter."""
        critic, metrics = self.critic_loss(batch)
        inputs = goals.beside(batch.observations, batch.actor_goals)
        error = (batch.actions - torch.tanh(self.actor(inputs))).square().mean(-1)
        cloning = (weight * error).mean(-1)
        return critic + cloning, metrics | {"policy_loss": cloning, "weight": weight.mean(-1)}

    def critic_loss(self, batch: GoalBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Fits each critic to its own target."""
        cfg, (critic, actor) = self.cfg, self.targets
        with torch.no_grad():
            after = goals.beside(batch.next_observations, batch.actor_goals)
            following = critic(after, torch.tanh(actor(after)))
            y = self.reached(batch)[:, None] + cfg.discount * following
            y = y.clamp(-1 / (1 - cfg.discount), 1 / (1 - cfg.discount))
        q = self.critic(goals.beside(batch.observations, batch.actor_goals), batch.actions)
        error = y - q
        weight = torch.where(error > 0, cfg.expectile, 1 - cfg.expectile)
        loss = ((weight * error.square()).sum(-1) / weight.sum(-1)).sum(-1)
        return loss, {"critic_loss": loss, "q": q.mean((1, 2))}

    def update(self, batch: GoalBatch) -> dict[str, Tensor]:
        """Takes one step of policy and critics, with the weights of before it."""
        weight, metrics = self.weigh(batch)
        losses = self._step(batch, weight)
        for target, online in zip(self.targets, (self.critic, self.actor), strict=True):
            optim.polyak(target, online, self.cfg.polyak)
        return metrics | losses


class Recent(nn.Module):
    """The last `size` numbers of each of `seeds` learners, on the device.

    Attributes:
        additions: how often numbers were added, `(S,)`.
    """

    def __init__(self, seeds: int, size: int):
        super().__init__()
        self.register_buffer("numbers", torch.full((seeds, size), math.inf))  # inf: none yet
        self.register_buffer("count", torch.zeros(seeds, dtype=torch.int64))
        self.register_buffer("additions", torch.zeros(seeds, dtype=torch.int64))

    def add(self, numbers: Tensor) -> None:
        """Remembers `(S, B)`, at most `size` of each seed, in the place of the oldest."""
        ahead = torch.arange(numbers.shape[1], device=numbers.device)
        places = (self.count[:, None] + ahead) % self.numbers.shape[1]
        self.numbers.scatter_(1, places, numbers)
        self.count += numbers.shape[1]
        self.additions += 1

    def percentile(self, percent: Tensor) -> Tensor:
        """Returns the percentiles `(S,)`, between two numbers on the line through them (NumPy's)."""
        place = percent / 100 * (self.count.clamp(max=self.numbers.shape[1]) - 1)
        ends = torch.stack([place.floor(), place.ceil()], 1).long()
        below, above = self.numbers.sort(-1).values.gather(1, ends).unbind(1)
        return below + (place - place.floor()) * (above - below)

    def scaled(self, numbers: Tensor) -> Tensor:
        """Remembers `(S, B)`, and returns them from 0 for the smallest of memory to 1 for the largest."""
        self.add(numbers)
        smallest = self.numbers.amin(1, keepdim=True)
        largest = torch.where(self.numbers < math.inf, self.numbers, smallest).amax(1, keepdim=True)
        return (numbers - smallest) / (largest - smallest).clamp(min=1e-12)


build = GOAT


def train(cfg: Config, run: Run) -> None:
    buffer = goals.load(run, cfg)
    agent = GOAT(cfg, goals.spec(run, buffer))
    update = compile.captured(agent.update, run.mode)
    for step in run.steps(agent=agent, buffer=buffer):
        run.log(step, update(buffer.sample()))
        run.evaluate(step, agent.act)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
