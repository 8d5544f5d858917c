"""How agents act at raw observations, for those whose policy is a Gaussian or deterministic.

Observations are `(S, n, O)`, actions and standard normal noise `(S, n, A)`; `normalizer` scales
observations for the policy.
"""

import torch
from torch import Tensor, nn

from corerl.nn.learner import Stateful
from corerl.nn.policies import CategoricalPolicy, GaussianPolicy, TanhGaussian


class SquashedActing(Stateful):
    """An agent that acts with `policy`, a Gaussian squashed by tanh."""

    policy: TanhGaussian
    normalizer: nn.Module = nn.Identity()

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """Returns tanh of the mean."""
        return self.policy.mode(self.normalizer(observations))

    @torch.no_grad()
    def explore(self, observations: Tensor, noise: Tensor) -> Tensor:
        """Samples an action."""
        return self.policy.sample(self.normalizer(observations), noise)[0]

    @torch.no_grad()
    def log_prob(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Returns the log-density `(S, n)` of given actions."""
        return self.policy.log_prob(self.normalizer(observations), actions)


class GaussianActing(Stateful):
    """An agent that acts with `policy`, a Gaussian whose actions are clipped to [-1, 1], or a categorical."""

    policy: GaussianPolicy | CategoricalPolicy
    normalizer: nn.Module

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """Returns the mean, clipped, or the likeliest numbers `(S, n)`."""
        return self.policy.best(self.policy(self.normalizer(observations)))

    @torch.no_grad()
    def explore(self, observations: Tensor, noise: Tensor) -> Tensor:
        """Samples an action, clipped, or a one-hot vector."""
        return self.policy.draw(self.policy(self.normalizer(observations)), noise)

    @torch.no_grad()
    def log_prob(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Returns the log-density `(S, n)` of given actions under the policy that is not clipped."""
        return self.policy.log_prob(self.policy(self.normalizer(observations)), actions)


class TanhActing(Stateful):
    """An agent that acts with `actor`, a network whose output's tanh is the action."""

    actor: nn.Module
    normalizer: nn.Module

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """Returns the action."""
        return torch.tanh(self.actor(self.normalizer(observations)))
