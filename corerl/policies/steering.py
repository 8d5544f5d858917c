"""Steers a run's policy by another run's critic: `corerl evaluate RUN --steer OTHER` (V-GPS).

Value-Guided Policy Steering (Nakamoto, Mees, Kumar and Levine 2024, arXiv:2410.13816) draws K actions from a
frozen policy and takes one by the softmax of Q / temperature. Nothing is trained. Towards temperature 0 it
takes the best one, as IDQL and IFQL do with a critic of their own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from corerl.config import require
from corerl.data.observations import check_parts
from corerl.nn import candidates
from corerl.policies.loaded_policy import Loaded
from corerl.policies.simulation import named_parts
from corerl.training.random_policy import RandomPolicy


class Steered(RandomPolicy):
    """The policy of S seeds whose proposals a critic chooses from, seed by seed.

    Args:
        agent: proposes actions. other: has the critics, of every seed of `agent`.
        samples: proposals per state, K. temperature: of the softmax of Q; 0 takes the best.

    Raises:
        CorerlError: the runs act in different spaces, `agent` acts without chance, `other` lacks a critic of
            states and actions or a seed, or a number is out of its range.
    """

    def __init__(self, agent: Loaded, other: Loaded, samples: int = 10, temperature: float = 1.0):
        super().__init__(agent.seeds)
        require(samples >= 1, f"--samples {samples} must be positive")
        require(temperature >= 0, f"--temperature {temperature:g} must not be negative")
        _check_spaces(agent, other)
        agent.check_proposes()
        other.check_values()
        lacking = [seed for seed in agent.seeds if seed not in other.seeds]
        require(
            not lacking,
            f"{other.path} has no seed {', '.join(map(str, lacking))}, so its critic cannot steer "
            f"that seed of {agent.path}. With --seed, choose a seed that both runs have",
        )
        self._agent, self._other = agent, other
        self._samples, self._temperature = samples, temperature
        places = [agent.seeds.index(s) if s in agent.seeds else 0 for s in other.seeds]
        self._for_other = torch.tensor(places)
        self._of_other = torch.tensor([other.seeds.index(s) for s in agent.seeds])

    @torch.no_grad()
    def __call__(self, observations: Tensor) -> Tensor:
        """Acts at `(S, n, O)`: returns `(S, n, A)`, or `(S, n)` where actions are discrete."""
        shapes, count = self._agent.shapes, self._samples
        noise = self.draws(torch.randn, observations, count, shapes.count or shapes.features)
        states = candidates.per_candidate(observations, count)
        proposed = self._agent.propose(states, noise.flatten(1, 2)).unflatten(1, (-1, count))
        inputs = (x[self._for_other] for x in (observations, proposed))
        q = self._other.values(*inputs)[self._of_other]
        uniforms = self.draws(torch.rand, observations)
        chosen = candidates.softmax_choice(q, self._temperature, uniforms)
        actions = candidates.take(proposed, chosen)
        return actions.argmax(-1) if shapes.count else actions


def _check_spaces(agent: Loaded, other: Loaded) -> None:
    """Raises CorerlError where the two runs do not see and act alike."""
    for what, one, two in (
        ("shapes", agent.shapes, other.shapes),
        ("history", agent.task.history, other.task.history),
        ("action_range", agent.task.action_range, other.task.action_range),
    ):
        require(
            one == two,
            f"{other.path} cannot steer {agent.path}, because their {what} differ ({two} and {one})",
        )
    names = (named_parts(run.task) for run in (agent, other))
    check_parts(f"{agent.path}", next(names), f"{other.path}", next(names))
