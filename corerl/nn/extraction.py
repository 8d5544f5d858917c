"""How a policy is extracted from values of goals: imitation by advantage, or the critic with cloning beside.

Both are OGBench's (Park et al. 2025, arXiv:2410.20092; impls/agents at 1d41409). States and goals stand side
by side in `inputs`, `(S, B, O + G)`; losses are `(S,)`.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from corerl.nn.policies import UnitGaussian

LIMIT = 100.0
"""The largest weight of a sample."""


def awr(
    policy: UnitGaussian, inputs: Tensor, actions: Tensor, advantage: Tensor, alpha: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Computes -E min(exp(alpha A), 100) log pi(a | s, g), with the advantage A `(S, B)` of the actions."""
    weight = torch.exp(alpha * advantage).clamp(max=LIMIT)
    log_prob = policy.log_prob(inputs, actions)
    loss = -(weight * log_prob).mean(-1)
    metrics = {"policy_loss": loss, "advantage": advantage.mean(-1), "log_prob": log_prob.mean(-1)}
    return loss, metrics


def ddpg_bc(
    policy: UnitGaussian,
    inputs: Tensor,
    actions: Tensor,
    q_of: Callable[[Tensor], Tensor],
    alpha: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Computes -E Q / E |Q| - alpha E log pi(a | s, g), with Q `(S, B)` of the policy's mean, clipped."""
    mean = policy(inputs)
    q = q_of(mean.clamp(-1, 1))
    climbing = -q.mean(-1) / (q.abs().mean(-1) + 1e-6).detach()
    log_prob = policy.log_prob_given(mean, actions).mean(-1)
    loss = climbing - alpha * log_prob
    return loss, {"policy_loss": loss, "policy_q": q.mean(-1), "log_prob": log_prob}
