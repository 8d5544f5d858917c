"""Expected conditional risk (ECRM, Yu and Shen 2022) as rewards that a policy gradient can maximise.

    sum_t discount^t rho_t,   rho = (1 - weight) E + weight CVaR_tau of one step's reward

With CVaR's auxiliary number (Rockafellar and Uryasev 2000), here eta_t, as a further action, the reward is

    now     (1 - weight) r_t + weight (eta_t - (eta_t - r_t)^+ / tau), eta_t chosen with a_t
    ahead   the same with eta_t chosen with a_{t-1}, and the first reward as it is (the paper's)

Our reading, of the structure of the paper's cost; the constants follow from CVaR's formula. After an
episode's end one more reward, 0, is scored, as in `solvers.ecrm_of_states`.
"""

import torch
from torch import Tensor
from torch.nn import functional as F


class ConditionalRisk:
    """Rewards of ECRM, where eta is one of `values` `(K,)` and chosen by its number.

    Args:
        weight: of the CVaR beside the mean, in [0, 1]. ahead: eta is chosen a step before its reward.
    """

    def __init__(self, values: Tensor, weight: float, discount: float, ahead: bool):
        self.values, self.weight, self.discount, self.ahead = values, weight, discount, ahead

    def rewards(
        self, rewards: Tensor, etas: Tensor, alive: Tensor, last: Tensor, tau: Tensor
    ) -> Tensor:
        """Returns the rewards whose discounted sum is maximised, `(S, E, T)`.

        Args:
            rewards: `(S, E, T)`. etas: numbers of those chosen with the actions.
            alive, last: 1 where a step was made, and where it was the episode's last.
            tau: `()`, the mass of CVaR's tail.
        """
        w, eta = self.weight, self.values[etas]
        if not self.ahead:
            tail = eta - (eta - rewards).clamp(min=0) / tau
            return ((1 - w) * rewards + w * tail) * alive
        known = F.pad(eta[..., :-1], (1, 0))
        scored = (1 - w) * rewards - w * (known - rewards).clamp(min=0) / tau
        first = torch.arange(rewards.shape[-1], device=rewards.device) == 0
        end = last * eta.clamp(min=0) / tau  # the reward after the end is 0
        next_step = self.discount * w * (eta - end)
        return (torch.where(first, rewards, scored) + next_step) * alive

    def memory(self, etas: Tensor) -> Tensor:
        """Returns the policy's memory `(S, E, T, 2)`, of etas `(S, E, T)`: see `remembered`."""
        if not self.ahead:
            return self.values.new_zeros(*etas.shape, 2)
        known = F.pad(self.values[etas][..., :-1], (1, 0))
        first = (torch.arange(etas.shape[-1], device=known.device) == 0).to(known.dtype)
        return torch.stack([known, first.expand_as(known)], -1)

    def remembered(self, etas: Tensor | None, like: Tensor) -> Tensor:
        """Returns `(S, n, 2)`: the eta chosen a step before, 0 at first, and whether this is the first step.

        `etas` `(S, n)` are numbers, None at the first step; `like` is any `(S, n)`. Zeros unless `ahead`.
        """
        zeros = torch.zeros_like(like)
        if not self.ahead:
            return torch.stack([zeros, zeros], -1)
        if etas is None:
            return torch.stack([zeros, zeros + 1], -1)
        return torch.stack([self.values[etas], zeros], -1)
