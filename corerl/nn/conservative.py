"""The conservative term of CQL, Cal-QL and WSRL: actions whose values are pushed down, and their gap.

Kumar, Zhou, Tucker and Levine 2020 (arXiv:2006.04779), eq. 4. S seeds, N critics, K actions per state.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from corerl.nn.policies import TanhGaussian


class CQLNoise(NamedTuple):
    """Standard normal draws `(S, K, B, A)`, each for K samples of the policy at a state."""

    actions: Tensor  # K = 1
    backup: Tensor  # K = 1 at s', or more to take the best of
    proposals: Tensor  # K = samples
    next_proposals: Tensor  # K = samples, at s'


def proposals(
    policy: TanhGaussian,
    observations: Tensor,
    next_observations: Tensor,
    noise: CQLNoise,
    uniforms: Tensor,
) -> tuple[Tensor, Tensor]:
    """Returns actions to push down, and their log-densities: uniform, of pi(.|s) and of pi(.|s').

    Returns:
        Actions `(S, 3n, B, A)` and log-densities `(S, 3n, B)`, for `uniforms` `(S, n, B, A)` on [0, 1).
    """
    density = -uniforms.shape[-1] * math.log(2)  # of [-1, 1]^A
    uniform = 2 * uniforms - 1, torch.full_like(uniforms[..., 0], density)
    current = policy.sample_many(observations, noise.proposals)
    following = policy.sample_many(next_observations, noise.next_proposals)
    actions, log_densities = zip(uniform, current, following, strict=True)
    return torch.cat(actions, 1), torch.cat(log_densities, 1)


def gap(
    q: Tensor,
    sampled: Tensor,
    log_density: Tensor,
    importance_sampling: bool,
    temperature: float = 1.0,
) -> Tensor:
    """Returns T * log sum exp(Q / T) over the samples, less Q at the data's action (eq. 4): `(S, N, B)`.

    Args:
        q: `(S, N, B)` at the data's actions. sampled: `(S, N, K, B)` at the proposals.
        log_density: `(S, K, B)` of the proposals, by which they are weighed with `importance_sampling`;
            without it the data's action joins them.
    """
    values = (
        sampled - log_density[:, None]
        if importance_sampling
        else torch.cat([sampled, q[:, :, None]], 2)
    )
    if temperature == 1:
        return torch.logsumexp(values, 2) - q
    return temperature * torch.logsumexp(values / temperature, 2) - q


def max_backup(q: Tensor) -> tuple[Tensor, Tensor]:
    """Takes the best of K actions by the least of N critics, from `(S, N, K, B)`: Q and number `(S, B)`."""
    return q.amin(1).max(1)
