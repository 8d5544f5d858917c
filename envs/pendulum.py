"""`corerl/pendulum`: 100,000 steps of Pendulum-v1 by controllers of mixed quality, from a seed.

Swing-up is by energy shaping (Astrom and Furuta 2000): with E = w^2/2 + 15 cos(theta), the energy
per moment of inertia (upright at rest: 15), the torque k (15 - E) w pumps energy in or out; near
the top a PD law catches the pole. Three controllers fill the set, each with exploration noise, so
that a policy that picks the good actions beats the average of the data by far:

    random    40 % of the episodes   uniform torques, redrawn with probability 0.3 at each step
    mediocre  40 %                   weak gains, strong noise: often misses the catch
    good      20 %                   gains near the best, mild noise

`corerl/pendulum-random-good-05` has few good episodes among random ones, to draw them by their returns.
`corerl/pendulum-logged` is for judging policies from data: every action is drawn anew from a density that is
recorded with it, uniform, or a normal around the controller's action cut off at -1 and 1.

`python -m corerl.envs.pendulum` prints the reference returns stored in `corerl.data.embedded`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy  # its parts are imported where they are first used: 0.3 s of every command's start

EPISODES, STEPS = 500, 200
CONTROLLERS = ("random", "mediocre", "good")
SHARES = (0.4, 0.4, 0.2)

G, DT, MAX_SPEED, MAX_TORQUE = 10.0, 0.05, 8.0, 2.0  # gymnasium's Pendulum-v1; m = l = 1
UPRIGHT_ENERGY = 1.5 * G


class Gains(NamedTuple):
    """One value per episode. Torques in N m, noise in units of the [-1, 1] action."""

    swing: np.ndarray  # energy gain k
    catch: np.ndarray  # |theta| in radians below which the PD law takes over
    stiffness: np.ndarray
    damping: np.ndarray
    noise: np.ndarray


def step(theta, speed, action):
    """One step of Pendulum-v1 for a batch: (E,) float64 states, float32 actions in [-1, 1].

    Returns theta, speed, reward. Theta is zero upright and is not wrapped; torques stay float32, as
    in gymnasium.
    """
    torque = np.clip(MAX_TORQUE * action, -MAX_TORQUE, MAX_TORQUE)
    angle = (theta + np.pi) % (2 * np.pi) - np.pi
    reward = -(angle**2 + 0.1 * speed**2 + 0.001 * torque**2)
    speed = speed + (1.5 * G * np.sin(theta) + 3.0 * torque) * DT
    speed = np.clip(speed, -MAX_SPEED, MAX_SPEED)
    return theta + speed * DT, speed, reward


def observe(theta, speed) -> np.ndarray:
    """(E, 3) float32: cosine, sine, angular speed."""
    return np.stack([np.cos(theta), np.sin(theta), speed], axis=1).astype(np.float32)


def control(theta, speed, gains: Gains) -> np.ndarray:
    """(E,) noise-free action of the swing-up and catch controller, in [-1, 1]."""
    angle = (theta + np.pi) % (2 * np.pi) - np.pi
    energy = 0.5 * speed**2 + UPRIGHT_ENERGY * np.cos(theta)
    direction = np.where(speed >= 0, 1.0, -1.0) * np.maximum(np.abs(speed), 0.1)
    swing = gains.swing * (UPRIGHT_ENERGY - energy) * direction
    catch = -gains.stiffness * angle - gains.damping * speed
    torque = np.where(np.abs(angle) < gains.catch, catch, swing)
    return np.clip(torque / MAX_TORQUE, -1, 1)


def make(
    seed: int = 0, episodes: int = EPISODES, shares: tuple[float, ...] = SHARES
) -> dict[str, np.ndarray]:
    """The dataset as arrays of N = episodes * 200 rows, the same for the same seed and numpy.

    observations, next_observations (N, 3), actions (N, 1) in [-1, 1], rewards (N,), truncated (N,);
    controller (episodes,) holds the index into CONTROLLERS that acted, `shares` how often each does.
    """
    rng = np.random.default_rng(seed)
    counts = np.round(np.array(shares) * episodes).astype(int)
    counts[0] += episodes - counts.sum()
    controller = rng.permutation(np.repeat(np.arange(3), counts))
    arrays = rollout(rng, draw_gains(rng, controller), is_random=controller == 0)
    return {**arrays, "controller": controller.astype(np.uint8)}


def draw_gains(rng: np.random.Generator, controller: np.ndarray) -> Gains:
    """Gains per episode for controller indices (E,). The random controller's are not used."""
    good = controller == 2

    def uniform(mediocre, best):
        low = np.where(good, best[0], mediocre[0])
        return rng.uniform(low, np.where(good, best[1], mediocre[1]))

    return Gains(
        swing=uniform((0.05, 0.2), (0.4, 1.0)),
        catch=uniform((0.2, 0.6), (0.4, 0.6)),
        stiffness=uniform((5.0, 10.0), (9.0, 14.0)),
        damping=uniform((0.2, 1.5), (1.5, 3.0)),
        noise=uniform((0.3, 0.8), (0.05, 0.3)),
    )


def best_gains(episodes: int) -> Gains:
    """The controller that sets the upper reference: no noise, gains in the middle of `good`."""
    return Gains(*(np.full(episodes, x) for x in (0.7, 0.5, 11.5, 2.25, 0.0)))


def rollout(
    rng: np.random.Generator, gains: Gains, is_random: np.ndarray, redraw: float = 0.3
) -> dict[str, np.ndarray]:
    """All episodes at once for STEPS steps, from Pendulum-v1's own reset distribution.

    Random episodes draw a new torque with probability `redraw` at each step.
    """
    n = len(is_random)
    theta = rng.uniform(-np.pi, np.pi, n)
    speed = rng.uniform(-1.0, 1.0, n)
    held = rng.uniform(-1, 1, n)
    columns: dict[str, list[np.ndarray]] = {
        "observations": [],
        "actions": [],
        "rewards": [],
        "next_observations": [],
    }
    for _ in range(STEPS):
        held = np.where(rng.random(n) < redraw, rng.uniform(-1, 1, n), held)
        noisy = control(theta, speed, gains) + gains.noise * rng.standard_normal(n)
        action = np.clip(np.where(is_random, held, noisy), -1, 1).astype(np.float32)
        columns["observations"].append(observe(theta, speed))
        columns["actions"].append(action[:, None])
        theta, speed, reward = step(theta, speed, action)
        columns["rewards"].append(reward.astype(np.float32))
        columns["next_observations"].append(observe(theta, speed))
    arrays = {
        k: np.stack(v, axis=1).reshape(n * STEPS, *v[0].shape[1:]) for k, v in columns.items()
    }
    arrays["truncated"] = np.tile(np.arange(STEPS) == STEPS - 1, n)
    return arrays


def make_mixture(seed: int = 0) -> dict[str, np.ndarray]:
    """`corerl/pendulum-random-good-05`: as `make`, 5 % of the episodes good and the others random."""
    return make(seed, shares=(0.95, 0.0, 0.05))


def make_logged(seed: int = 0, episodes: int = EPISODES) -> dict[str, np.ndarray]:
    """As `make`, with every action from a known density and its logarithm, behaviour_log_prob (N,)."""
    rng = np.random.default_rng([seed, 0x10C])
    controller = rng.integers(3, size=episodes)
    gains = draw_gains(rng, controller)
    std = np.where(
        controller == 2, rng.uniform(0.2, 0.4, episodes), rng.uniform(0.4, 0.8, episodes)
    )
    theta, speed = rng.uniform(-np.pi, np.pi, episodes), rng.uniform(-1.0, 1.0, episodes)
    steps = []
    for _ in range(STEPS):
        mean = control(theta, speed, gains)
        action = _cut_normal(rng.random(episodes), mean, std)
        action = np.where(controller == 0, rng.uniform(-1, 1, episodes), action).astype(np.float32)
        log_prob = np.where(controller == 0, -np.log(2), _log_density(action, mean, std))
        before = observe(theta, speed)
        theta, speed, reward = step(theta, speed, action)
        steps.append((before, action[:, None], reward, observe(theta, speed), log_prob))
    names = ("observations", "actions", "rewards", "next_observations", "behaviour_log_prob")
    arrays = {
        name: np.stack(column, 1).reshape(episodes * STEPS, *column[0].shape[1:]).astype(np.float32)
        for name, column in zip(names, zip(*steps, strict=True), strict=True)
    }
    arrays["truncated"] = np.tile(np.arange(STEPS) == STEPS - 1, episodes)
    return {**arrays, "controller": controller.astype(np.uint8)}


def _cut_normal(uniform, mean, std) -> np.ndarray:
    """Draws of a normal on condition that they lie in [-1, 1], from uniform ones."""
    low, high = scipy.special.ndtr((-1 - mean) / std), scipy.special.ndtr((1 - mean) / std)
    return np.clip(mean + std * scipy.special.ndtri(low + uniform * (high - low)), -1, 1)


def _log_density(action, mean, std) -> np.ndarray:
    inside = scipy.special.ndtr((1 - mean) / std) - scipy.special.ndtr((-1 - mean) / std)
    normal = -0.5 * ((action - mean) / std) ** 2 - np.log(std * np.sqrt(2 * np.pi))
    return normal - np.log(inside)


def reference_returns(episodes: int = 10_000, seed: int = 12_345) -> tuple[float, float]:
    """Mean return of actions drawn uniformly at every step, and of the noise-free controller."""
    rng = np.random.default_rng(seed)
    means = []
    for is_random in (True, False):
        random = np.full(episodes, is_random)
        rewards = rollout(rng, best_gains(episodes), random, redraw=1.0)["rewards"]
        means.append(float(rewards.reshape(episodes, STEPS).sum(1, dtype=np.float64).mean()))
    return means[0], means[1]


if __name__ == "__main__":
    low, high = reference_returns()
    print(f"Pendulum-v1 over 10,000 episodes: random {low:.1f}, controller {high:.1f}")
    data = make()
    returns = data["rewards"].reshape(EPISODES, STEPS).sum(1)
    for i, name in enumerate(CONTROLLERS):
        mine = returns[data["controller"] == i]
        print(f"{name:9s} {len(mine)} episodes, return {mine.mean():.0f} ± {mine.std():.0f}")
