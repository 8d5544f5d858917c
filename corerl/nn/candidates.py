"""Several candidate actions per state: what critics think of them, and which one is taken.

Candidates are `(S, n, K, A)`, K for each of n states.
"""

import torch
from torch import Tensor

from corerl.nn.critics import Critics, ManyActionCritics


def per_candidate(observations: Tensor, count: int) -> Tensor:
    """Repeats every observation `count` times: `(S, n, O)` to `(S, n * count, O)`, in candidates' order."""
    return observations[:, :, None].expand(-1, -1, count, -1).flatten(1, 2)


def values(critic: Critics, observations: Tensor, candidates: Tensor) -> Tensor:
    """Evaluates N critics at every candidate: `(S, n, O)` and `(S, n, K, A)` to `(S, N, n, K)`."""
    if isinstance(critic, ManyActionCritics):
        return critic(observations, candidates.transpose(1, 2)).transpose(2, 3)
    count = candidates.shape[2]
    q = critic(per_candidate(observations, count), candidates.flatten(1, 2))
    return q.unflatten(-1, (-1, count))


def take(candidates: Tensor, chosen: Tensor) -> Tensor:
    """Returns the chosen candidates `(S, n, A)`, by their numbers `(S, n)`."""
    rows = chosen[..., None, None].expand(-1, -1, 1, candidates.shape[-1])
    return candidates.gather(2, rows).squeeze(2)


def best(candidates: Tensor, scores: Tensor) -> Tensor:
    """Returns the candidate `(S, n, A)` of the largest score, `(S, n, K)`."""
    return take(candidates, scores.argmax(-1))


def softmax_choice(scores: Tensor, temperature: float, uniforms: Tensor) -> Tensor:
    """Draws numbers of candidates `(S, n)` with probabilities softmax(scores / temperature).

    Args:
        scores: `(S, n, K)`. temperature: 0 takes the best. uniforms: `(S, n)`, one draw per state.
    """
    if temperature == 0:
        return scores.argmax(-1)
    ends = torch.softmax(scores / temperature, -1).cumsum(-1)
    below = ends < uniforms[..., None] * ends[..., -1:]
    return below.sum(-1).clamp(max=scores.shape[-1] - 1)
