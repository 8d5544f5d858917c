"""Learned policies that see a stock, as policies of a finite MDP, so that their return laws are exact."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from corerl.risk.finite_mdp import FiniteMDP, Policy
from corerl.risk.static_cvar import attainable


def stock_policies(
    mdp: FiniteMDP,
    act: Callable[[Tensor, Tensor], Tensor],
    observe: Callable[[int, int], np.ndarray],
    first: Tensor,
    bounds: tuple[float, float],
) -> list[Policy]:
    """Tabulates what the policies of S seeds do wherever an episode can get, for `return_law`.

    Args:
        act: observations `(S, n, O)` and stocks `(S, n)` to actions `(S, n)`.
        observe: a state and a time to what is seen of them, `(O,)`.
        first: the first stocks `(S,)`. bounds: within which stocks are kept.

    Raises:
        CorerlError: the MDP has too many different returns to list.
    """
    collected, tables = attainable(mdp)[0], []
    for t, sums in enumerate(collected):
        seen = np.stack([observe(state, t) for state in range(mdp.sizes[0])])
        seen = torch.as_tensor(seen).repeat_interleave(len(sums), 0)
        left = (first[:, None].double().cpu() - torch.as_tensor(sums)) / mdp.discount**t
        left = left.clamp(*bounds).to(first).repeat(1, mdp.sizes[0])
        actions = act(seen.to(first.device).expand(len(first), *seen.shape), left)
        tables.append(actions.view(len(first), mdp.sizes[0], len(sums)).cpu().numpy())

    def policy(seed: int) -> Policy:
        def chosen(t: int, state: int, total: float) -> int:
            place = np.abs(collected[t] - total).argmin()
            return int(tables[t][seed, state, place])

        return chosen

    return [policy(seed) for seed in range(len(first))]
