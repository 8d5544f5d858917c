"""`corerl/cartpole`: 60,000 steps of CartPole-v1 by controllers of mixed quality, from a seed.

A controller pushes towards the side to which k . (x, v, theta, w) leans, and a random way with a
probability of its own. A third of the steps are by each of

    random    uniform actions: about 22 steps an episode
    mediocre  gains that hardly look at the pole's speed, a fifth of the actions random: about 29
    good      gains that hold the pole in the middle, but half of the actions random: about 200

so that cloning mixes them, and a policy that picks the good actions reaches 500. The probability of every
action under the controller that chose it is recorded.
`python -m corerl.envs.cartpole` prints the reference returns stored in `corerl.data.embedded`.
"""

from __future__ import annotations

import gymnasium
import numpy as np

STEPS = 60_000
CONTROLLERS = {
    "random": (np.zeros(4), 1.0),
    "mediocre": (np.array([0.0, 0.3, 1.0, 0.2]), 0.2),
    "good": (np.array([0.1, 0.5, 3.0, 1.0]), 0.5),
}
"""Gains, and the share of random actions."""


def make(seed: int = 0) -> dict[str, np.ndarray]:
    """Observations (N, 4), actions (N,) 0 or 1, rewards, next observations, terminated, truncated, and
    log-probabilities of the actions (N,)."""
    rng = np.random.default_rng([seed, 0xCA47])
    parts = [_play(*CONTROLLERS[name], STEPS // 3, rng) for name in CONTROLLERS]
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def _play(gains: np.ndarray, random: float, steps: int, rng: np.random.Generator) -> dict:
    """So many steps of one controller. The last episode is cut, and truncated there."""
    env = gymnasium.make("CartPole-v1")
    rows = []
    observation, _ = env.reset(seed=int(rng.integers(2**31)))
    for _ in range(steps):
        action = wanted = int(gains @ observation > 0)
        if rng.random() < random:
            action = int(rng.integers(2))
        likely = np.log((1 - random) * (action == wanted) + random / 2)
        following, reward, terminated, truncated, _ = env.step(action)
        truncated |= not terminated and len(rows) == steps - 1
        rows.append((observation, action, reward, following, terminated, truncated, likely))
        observation = env.reset()[0] if terminated or truncated else following
    kinds = {
        "observations": np.float32,
        "actions": np.int64,
        "rewards": np.float32,
        "next_observations": np.float32,
        "terminated": bool,
        "truncated": bool,
        "behaviour_log_prob": np.float32,
    }
    columns = zip(*rows, strict=True)
    return {name: np.array(x, kinds[name]) for name, x in zip(kinds, columns, strict=True)}


def returns(gains: np.ndarray, random: float, episodes: int, seed: int = 0) -> float:
    """The mean return of a controller's episodes."""
    env, rng, total = gymnasium.make("CartPole-v1"), np.random.default_rng(seed), 0.0
    for _ in range(episodes):
        observation, _ = env.reset(seed=int(rng.integers(2**31)))
        over = False
        while not over:
            action = int(gains @ observation > 0)
            action = int(rng.integers(2)) if rng.random() < random else action
            observation, reward, terminated, truncated, _ = env.step(action)
            over, total = terminated or truncated, total + float(reward)
    return total / episodes


if __name__ == "__main__":
    print("random", returns(*CONTROLLERS["random"], 10_000))
    print("good, without random actions", returns(CONTROLLERS["good"][0], 0.0, 200))
