"""The behaviour policy as a variational auto-encoder, as in BCQ (Fujimoto, Meger and Precup 2019)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from corerl.nn.networks import MLP


class BehaviourVAE(nn.Module):
    """An encoder of states and actions, and a decoder of states and latents of twice the action's size.

    Args:
        observation_dim, action_dim: features of an observation and of an action.
        width: of the two hidden layers of each.
        rngs: one CPU generator per seed for the initial weights.
        others: as for `MLP`.
    """

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        width: int,
        rngs: Sequence[torch.Generator],
        **others,
    ):
        super().__init__()
        lead, latents, hidden = (len(rngs),), 2 * action_dim, [width, width]
        self.encoder = MLP(
            [observation_dim + action_dim, *hidden, 2 * latents], lead, rngs, **others
        )
        self.decoder = MLP([observation_dim + latents, *hidden, action_dim], lead, rngs, **others)

    def encode(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Returns mean and log-std of the latent, `(S, B, 2A)` each."""
        mean, log_std = self.encoder(torch.cat([observations, actions], -1)).chunk(2, -1)
        return mean, log_std.clamp(-4, 15)

    def decode(self, observations: Tensor, latents: Tensor) -> Tensor:
        """Returns actions `(S, B, A)` in [-1, 1] of latents `(S, B, 2A)`."""
        return torch.tanh(self.decoder(torch.cat([observations, latents], -1)))
