"""RRS: random reward shifts (Sun et al. 2022, NeurIPS, arXiv:2209.07288), on TD3.

A constant c added to every reward acts as a first value of Q. On a task that never ends, value iteration
from Q = 0 on r + c does the same as from Q = -c / (1 - discount) on r. A negative shift makes the unknown
look good, and explores. A positive one makes it look bad, and stays near the data. RRS learns a pair of
critics for every shift. The policy climbs one pair after another, drawn at random:

    critics of c   (Q(s, a) - r - c - discount * min Q'(s', u(mu'(s') + e)))^2
    policy         -Q_1(s, mu(s)) of the pair whose turn it is

    python algos/rrs.py task=gym/Pendulum-v1 steps=10000 seeds=3
    corerl train -m algo=rrs,td3 task=gym/MountainCarContinuous-v0 seeds=5

Where episodes end, a shift changes which policy is best: a positive one pays for staying alive.
`ends=exact` also pays c / (1 - discount) after a true end, and the best policy stays. With one shift of 0 it
is TD3, bit for bit.

Differences from the authors' code (holarissun/RewardShifting at 87e6602, E&E-RRS):
 1. A turn takes `turn` updates of the critics. There it ends with the first episode after so many steps.
 2. Turns are drawn uniformly, the command of their README. Its other modes choose by evaluations, which it
    does not count as experience.
 3. `ends=exact` is ours. `ends=shifted` is the code.
 4. What TD3 does otherwise is as in algos/td3.py.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from corerl import seeding
from corerl.algos import td3
from corerl.algos.td3 import TD3
from corerl.buffers.replay import Batch
from corerl.config import one_of, positive, require
from corerl.nn import optim
from corerl.nn.learner import Spec
from corerl.training.run import Run

TURNS = 4096
"""How many turns are drawn in advance. Then they come again."""


@dataclass
class Config(td3.Config):
    name: str = "rrs"
    label: str = "RRS"

    shifts: list[float] = field(  # reward shift of each pair of critics
        default_factory=lambda: [-0.5, 0.0, 0.5]
    )
    turn: int = positive(1_000)  # critic updates for which the policy follows one pair of critics
    ends: str = one_of(  # value after an end, shifted (0) | exact (shift / (1 - discount))
        "shifted", "exact"
    )

    def __post_init__(self):
        super().__post_init__()
        require(len(self.shifts) > 0, "algo.shifts=[] must have at least one number, as in [0.0]")
        require(
            self.ends == "shifted" or self.discount < 1,
            "algo.ends=exact needs algo.discount below 1",
        )


class RRS(TD3):
    """RRS agents of S seeds with K pairs of critics. `chosen` `(S,)` is the pair that the policy climbs."""

    def __init__(self, cfg: Config, spec: Spec):
        shifts = len(cfg.shifts)
        super().__init__(cfg, spec, critics=2 * shifts)
        self._shifts = torch.tensor(cfg.shifts, device=spec.device)[:, None]
        self.clock = optim.Clock(spec.device)  # of the policy's updates
        rngs = seeding.generators(spec.identities or range(spec.seeds), "turns")
        drawn = [torch.randint(shifts, (TURNS,), generator=rng) for rng in rngs]
        self._turns = torch.stack(drawn).to(spec.device)
        self.chosen = self._turns[:, 0].clone()

    def critic_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Regresses every pair of critics towards its smaller target on its shifted rewards."""
        cfg, pairs = self.cfg, (len(self.cfg.shifts), 2)
        next_q = self.next_q(batch, noise).unflatten(1, pairs).amin(2)
        going = (1 - batch.terminated)[:, None]
        following = going * next_q
        if cfg.ends == "exact":
            following = following + (1 - going) * self._shifts / (1 - cfg.discount)
        y = batch.rewards[:, None] + self._shifts + cfg.discount * following
        q = self.critic(batch.observations, batch.actions).unflatten(1, pairs)
        loss = (q - y[:, :, None]).square().mean(-1).sum((1, 2))
        means = q.mean((2, 3)).unbind(1)
        by_shift = {f"q shifted by {c:g}": x for c, x in zip(cfg.shifts, means, strict=True)}
        return loss, {"critic_loss": loss, **by_shift}

    def actor_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Climbs the first critic of the chosen pair."""
        q = self.critic(batch.observations, torch.tanh(self.actor(batch.observations)))
        chosen = 2 * self.chosen.view(-1, 1, 1).expand(-1, 1, q.shape[-1])
        loss = -q.gather(1, chosen).mean((1, 2))
        return loss, {"actor_loss": loss}

    def update_all(self, batch: Batch, noise: Tensor) -> dict[str, Tensor]:
        """Gives the turn to a pair and takes TD3's steps."""
        turn = self.clock.count * self.cfg.policy_delay // self.cfg.turn % TURNS
        self.chosen.copy_(self._turns.index_select(1, turn.view(1)).squeeze(1))
        self.clock.step()
        return super().update_all(batch, noise)


build = RRS


def train(cfg: Config, run: Run) -> None:
    td3.learn(RRS, cfg, run)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
