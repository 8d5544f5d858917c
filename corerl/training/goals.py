"""What the algorithms that learn to reach goals share: their settings and their data."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from corerl.buffers.goals import GoalBuffer, Goals
from corerl.config import at_least, group, positive, require, within
from corerl.nn import networks
from corerl.nn.learner import Spec
from corerl.nn.mlp_settings import MLPSettings, activation
from corerl.nn.policies import UnitGaussian
from corerl.training import preprocessing
from corerl.training.run import Run


@dataclass
class GoalSettings(MLPSettings):
    """Base of the `Config` of an algorithm that learns to reach goals. The defaults are OGBench's."""

    knows_goals = learns_from_data = True

    discount: float = within(0.99, "(0, 1)")
    lr: float = positive(3e-4)  # learning rate of all networks
    batch_size: int = positive(1024)
    hidden_layers: int = at_least(0, 3)
    hidden_width: int = positive(512)
    activation: str = activation("gelu_tanh")  # activation of the hidden layers
    value_layer_norm: bool = True  # LayerNorm after every hidden activation of values and critics
    goals: Goals = group(Goals)

    @property
    def hidden(self) -> list[int]:
        """The widths of the hidden layers."""
        return [self.hidden_width] * self.hidden_layers

    @property
    def policy_options(self) -> dict[str, Any]:
        """Options of the policy's network."""
        return self.mlp_options | {"init": networks.xavier(), "output_init": networks.xavier(0.1)}

    @property
    def value_options(self) -> dict[str, Any]:
        """Options of the networks of values and critics."""
        norm = 1e-6 if self.value_layer_norm else None
        return self.mlp_options | {"init": networks.xavier(), "layer_norm": norm}


class Sizes(NamedTuple):
    """Features of states, goals and actions."""

    state: int
    goal: int
    action: int

    @classmethod
    def of(cls, spec: Spec) -> "Sizes":
        """Returns the sizes in a spec that `spec` of this module made."""
        goal = spec.facts["goal_dim"]
        return cls(spec.observation_dim - goal, goal, spec.action_dim)


def load(run: Run, cfg: GoalSettings) -> GoalBuffer:
    """Loads the run's data as a buffer with goals.

    Raises:
        CorerlError: the data has images, discrete actions, or episodes with holes.
    """
    dataset = preprocessing.vectors(run)
    return GoalBuffer(dataset, run.seeds, cfg.batch_size, cfg.goals, cfg.discount, run.device)


def spec(run: Run, buffer: GoalBuffer) -> Spec:
    """Returns the `Spec` of an agent that acts on states and goals side by side."""
    facts: dict[str, Any] = {"goal_dim": buffer.goal_dim}
    if buffer.columns is not None:
        states = torch.arange(buffer.state_dim)
        facts["shown"] = torch.cat([states, buffer.state_dim + torch.tensor(buffer.columns)])
    return run.spec(buffer, facts=facts)


def check_whole_states(cfg: GoalSettings, sizes: Sizes) -> None:
    """Raises CorerlError where goals are parts of states and an agent needs the whole of them."""
    require(
        sizes.goal == sizes.state,
        f"{cfg.name} needs whole states as goals, but algo.goals.columns={cfg.goals.columns} "
        "chooses only some columns. Leave algo.goals.columns out",
    )


class Shown(nn.Module):
    """The state, and of the goal behind it the columns that the agent knows."""

    def __init__(self, spec: Spec):
        super().__init__()
        self._columns = spec.facts.get("shown")

    def forward(self, observations: Tensor) -> Tensor:
        if self._columns is None:
            return observations
        return observations.index_select(-1, self._columns.to(observations.device))


def beside(states: Tensor, goals: Tensor) -> Tensor:
    """Returns states and goals side by side, as the environment shows them."""
    return torch.cat([states, goals], -1)


def policy(cfg: GoalSettings, spec: Spec) -> UnitGaussian:
    """Returns a policy that reads state and goal, on the spec's device."""
    sizes = [spec.observation_dim, *cfg.hidden, spec.action_dim]
    return UnitGaussian(sizes, spec.rngs, **cfg.policy_options).to(spec.device)
