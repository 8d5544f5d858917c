"""Distortion risk measures: which part of a quantile function an actor looks at.

    naive  CVaR at tau of the return to come: fractions uniform on [0, tau]
    wang   Wang 2000: fractions Phi(Phi^-1(u) + eta), u uniform; averse for eta < 0
    mean   all fractions alike

`naive` says what these objectives do: an actor that is greedy, state by state, for the CVaR of the return
to come, with a critic of the law of that actor, optimises neither the CVaR of the whole return (static) nor
the nested one (iterated). See corerl.algos.cvar_tabular for how far apart they are.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from corerl.config import Settings, one_of, require, within


@dataclass
class Distortion(Settings):
    """Settings of the measure. Part of an algorithm's `Config`."""

    objective: str = one_of(  # naive (CVaR of the future return) | wang (Wang's measure) | mean
        "naive", "wang", "mean"
    )
    tau: float | None = within(0.1, "(0, 1]")  # share of worst returns that counts (null with wang)
    eta: float = -0.75  # parameter of Wang's measure (negative: risk-averse)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.objective == "wang":
            require(
                self.tau is None, "algo.objective=wang uses eta instead of tau. Set algo.tau=null"
            )
            return
        require(
            self.tau is not None,
            f"algo.tau={self.tau} must lie in (0, 1]. It is the share of worst returns that counts",
        )


def fractions(cfg: Distortion, uniforms: Tensor) -> Tensor:
    """Returns the fractions whose quantiles, averaged, are the measure, from uniform draws of any shape."""
    if cfg.objective == "wang":
        return torch.special.ndtr(torch.special.ndtri(uniforms) + cfg.eta)
    return uniforms * (cfg.tau if cfg.objective == "naive" else 1.0)


def weights(cfg: Distortion, fractions: Tensor) -> Tensor:
    """Returns the density of `fractions` above at given ones, of any shape: what each quantile counts."""
    if cfg.objective == "wang":
        x = torch.special.ndtri(fractions)
        return torch.exp(cfg.eta * x - 0.5 * cfg.eta**2)
    if cfg.objective == "naive":
        return (fractions < cfg.tau).to(fractions.dtype) / cfg.tau
    return torch.ones_like(fractions)
