"""HalfCheetah, Hopper and Walker2d with a rare large penalty for going fast or leaning (O-RAAC).

Urpi, Curi and Krause 2021 make D4RL's locomotion risky:

    body         risky                              probability  penalty
    halfcheetah  forward velocity above 4           0.05         -70
                 (expert: above 10)                 0.05         -60
    hopper       torso angle outside (-0.1, 0.1)    0.10         -50
    walker2d     torso angle outside (-0.5, 0.5)    0.10         -30

Where the penalty fires, HalfCheetah loses the step's forward reward too. Episodes have 200 (HalfCheetah)
and 500 steps.

Differences from the authors' code:
 1. gymnasium's v4 environments, as for D4RL elsewhere in this package; theirs are gym's v3.
 2. Velocity and angle are those after the step, in the environment and in the data alike, and a step into
    a fall is not penalised in either. Their data uses the angle before the step, falls included.
 3. Data is relabelled from what it holds, and no simulator is needed: HalfCheetah's velocity is reward +
    0.1 |a|^2 exactly, the angle is the second observation. They step a simulator from each stored state.
 4. Datasets of any version of D4RL, or made by `corerl data make`, are relabelled; theirs are v0.
"""

from __future__ import annotations

from dataclasses import dataclass

import gymnasium
import numpy as np

CONTROL_COST = 0.1  # HalfCheetah's, per squared action
ANGLE = 1  # its place in the observations of Hopper and Walker2d


@dataclass(frozen=True)
class Hazard:
    """When a step is risky, how often that is penalised, and by how much."""

    environment: str
    limit: float  # m/s for HalfCheetah, rad for the others, on both sides of 0
    probability: float
    penalty: float
    steps: int  # number of steps in an episode

    @property
    def of_speed(self) -> bool:
        return self.environment.startswith("HalfCheetah")


HAZARDS = {
    "halfcheetah": Hazard("HalfCheetah-v4", 4.0, 0.05, -70.0, 200),
    "halfcheetah-expert": Hazard("HalfCheetah-v4", 10.0, 0.05, -60.0, 200),
    "hopper": Hazard("Hopper-v4", 0.1, 0.1, -50.0, 500),
    "walker2d": Hazard("Walker2d-v4", 0.5, 0.1, -30.0, 500),
}


class StochasticPenalty(gymnasium.Wrapper):
    """Adds the penalty. `info` tells whether the step was `risky` and whether it was `penalised`.

    The draw comes from the simulator's own generator, so that it is seeded, saved and restored with it.
    """

    def __init__(self, env: gymnasium.Env, hazard: Hazard):
        super().__init__(env)
        self.hazard = hazard

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        speed = info["x_velocity"]
        measured = speed if self.hazard.of_speed else observation[ANGLE]
        risky = bool(is_risky(self.hazard, measured)) and not terminated
        fires = risky and self.unwrapped.np_random.random() < self.hazard.probability
        if fires:
            reward += self.hazard.penalty - (speed if self.hazard.of_speed else 0.0)
        info |= {"risky": risky, "penalised": fires}
        return observation, float(reward), terminated, truncated, info


def is_risky(hazard: Hazard, measured: np.ndarray) -> np.ndarray:
    """Of a forward velocity, or of a torso angle."""
    return measured > hazard.limit if hazard.of_speed else np.abs(measured) >= hazard.limit
