"""Static risks as the least expected score of a return (Han et al. 2025, arXiv:2505.04553).

risk(X) = min_v E f(X, v)

objective       f, with u = X - v                  the best v
cvar            (-u)^+ / tau - v                   a tau-quantile (Rockafellar and Uryasev 2000)
variance        u^2                                E X
mean_variance   -u + weight u^2 - v                E X
entropic        (exp(-beta u) - 1) / beta - v      -risk
mean            -u - v                             any
"""

import math

import torch
from torch import Tensor


class ScoringFunction:
    """f of one objective. `weight` is mean_variance's, `beta` entropic's."""

    def __init__(self, objective: str, weight: float, beta: float):
        self.objective, self.weight, self.beta = objective, weight, beta

    def score(self, u: Tensor, tau: Tensor) -> Tensor:
        """Returns f without its -v, of u = X - v of any shape. `tau` `()` is cvar's."""
        if self.objective == "cvar":
            return (-u).clamp(min=0) / tau
        if self.objective == "variance":
            return u.square()
        if self.objective == "mean_variance":
            return self.weight * u.square() - u
        if self.objective == "entropic":
            return torch.expm1(-self.beta * u) / self.beta
        return -u

    def best_v(self, returns: Tensor, tau: Tensor) -> Tensor:
        """Returns the v `(S,)` of the least mean score of returns `(S, E)`, the largest of several."""
        if self.objective == "entropic":
            worst = torch.logsumexp(-self.beta * returns, -1) - math.log(returns.shape[-1])
            return -worst / self.beta
        if self.objective == "cvar":
            count = returns.shape[-1]
            place = (tau * count + 1e-6).long().clamp(max=count - 1)  # 0.3 * 10 is a whole number
            return returns.sort(-1).values.index_select(-1, place.view(1)).squeeze(-1)
        return returns.mean(-1)
