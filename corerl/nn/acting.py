"""How agents act at raw observations.

Observations are `(S, n, O)`, actions and standard normal noise `(S, n, A)`; `normalizer` scales
observations for the policy.
"""

import torch
from torch import Tensor, nn

from corerl.nn.learner import Stateful


class PolicyActing(Stateful):
    """An agent that acts with `policy`, one of `corerl/nn/policies.py` or with the same methods."""

    policy: nn.Module
    normalizer: nn.Module = nn.Identity()

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """Returns the policy's mode. Of discrete actions it is the number, `(S, n)`."""
        return self.policy.mode(self.normalizer(observations))

    @torch.no_grad()
    def explore(self, observations: Tensor, noise: Tensor) -> Tensor:
        """Draws an action. A discrete one is a one-hot vector."""
        return self.policy.draw(self.normalizer(observations), noise)

    @torch.no_grad()
    def log_prob(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Returns the log-density `(S, n)` of given actions, before any clipping."""
        return self.policy.log_prob(self.normalizer(observations), actions)


class TanhActing(Stateful):
    """An agent that acts with `actor`, a network whose output's tanh is the action."""

    actor: nn.Module
    normalizer: nn.Module

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """Returns the action."""
        return torch.tanh(self.actor(self.normalizer(observations)))
