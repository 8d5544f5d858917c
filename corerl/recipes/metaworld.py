"""`corerl/metaworld`: MetaWorld tasks recorded by IPL's recipe, for learning from comparisons.

By the code of Hejna and Sadigh (2023), scripts/create_metaworld_offline_dataset.py, 400 episodes a task:

    expert   MetaWorld's scripted policy of the task, which sees the goal
    within   the same policy, driven by a second simulation whose goal is another
    random   uniform actions
    cross    the scripted policy of a task drawn from all fifty, driven by a simulation of that

with normal noise of standard deviation 1 on the scripted actions. An episode ends after 500 steps, or with
the 25th step at which the task is solved. The goal is drawn anew for every episode and hidden: its three
numbers in the observation are 0. Needs metaworld.

    corerl data make corerl/metaworld                     six tasks, 2 to 9 CPU minutes each
    corerl data make corerl/metaworld/button-press
    corerl data preferences corerl/metaworld/button-press-v3 --pairs 10000 --length 25 --discount 0.99

The last makes IPL's comparisons of it: windows of 25 steps drawn uniformly, the second preferred where its
discounted sum of rewards is larger. A training run makes them itself by algo.preferences.{length=25,
discount=0.99}, and of fewer pairs the same first ones, as IPL's subsets. Scores are the share of solved
episodes.

Differences from IPL's data, each with its reason:
 1. It is MetaWorld's v3 on the maintained mujoco, not v2 on mujoco-py, which no longer installs; the rewards
    are v2's. Numbers compare in kind only.
 2. The four kinds take turns, so that a set cut short with --size has all of them.
 3. A cross-task simulation draws its goal at each reset, not once when it is built; it is built anew for
    each episode in either case.
 4. Actions are clipped to 1 - 1e-5 as there; they are float32.

In assembly, noise of 1 spoils the scripted policy: no episode solves it, as in a rerun of IPL's recipe on
v3. Its published data may have been made with less.
"""

from __future__ import annotations

import warnings

import numpy as np

from corerl import seeding
from corerl.data import suites
from corerl.envs.metaworld_suite import MetaWorld, package
from corerl.recipes import collecting
from corerl.recipes.collecting import Chunk, Episode

EACH = 100  # episodes of each kind
KINDS = ("expert", "within", "random", "cross")
STEPS = 500
SOLVED_STEPS = 25  # after which an episode ends
NOISE = 1.0
LIMIT = 1 - 1e-5
VERSION = 1  # raised when the recipe changes


def make(wanted: list[str], seed: int, size: int | None, steps: int | None) -> dict[str, bool]:
    """Makes these sets. `{name: False}` for one that was there already. `steps` is not used.

    Raises:
        CorerlError: metaworld is missing, or a set exists with other contents.
    """
    return {name: make_one(name, seed, size) for name in wanted}


def make_one(name: str, seed: int, size: int | None) -> bool:
    """Makes one set of 400 episodes, or of their first `size` steps."""
    environment = suites.ENVIRONMENTS[name]
    recipe = {"version": VERSION, "seed": seed, "environment": environment}
    recipe |= {"size": size} if size else {"episodes": EACH * len(KINDS)}
    if collecting.is_made(name, recipe):
        return False
    chunk = _episodes(name.removeprefix("metaworld/"), seed, name)
    max_steps = size or EACH * len(KINDS) * STEPS
    policy = f"scripted policies, noise {NOISE:g}"
    collecting.collect(name, recipe, chunk, max_steps, policy=policy, facts={})
    return True


def _episodes(task: str, seed: int, name: str) -> Chunk:
    """Makes chunks of one episode of each kind, `EACH` times."""
    policies = package().policies.ENV_POLICY_MAP
    env, guide = MetaWorld(task), MetaWorld(task, hidden=False)

    def chunk(number: int) -> list[Episode]:
        if number >= EACH:
            return []
        rng = np.random.default_rng(seeding.derive(seed, f"{name}/{number}"))
        played = []
        for kind in KINDS:
            start, other = rng.integers(2**31, size=2).tolist()
            by, simulation = task, guide
            if kind == "cross":
                by = str(rng.choice(list(policies)))
                simulation = MetaWorld(by, hidden=False)
            policy = None if kind == "random" else policies[by]()
            driver = None if policy is None else (policy, simulation)
            same = kind == "expert"
            played.append(_play(env, driver, start, start if same else other, rng))
        return played

    return chunk


def _play(env: MetaWorld, driver: tuple | None, start: int, other: int, rng) -> Episode:
    """Plays an episode from seed `start` by a policy that sees its own simulation of seed `other`.

    From one seed, two simulations of a task go through the same states.
    """
    states = [env.reset(seed=start)[0]]
    if driver is not None:
        policy, simulation = driver
        seen = simulation.reset(seed=other)[0]
    actions, rewards, solved, over = [], [], 0, False
    while not over and solved < SOLVED_STEPS:
        action = rng.uniform(-1, 1, 4)
        if driver is not None:
            with warnings.catch_warnings():  # that actions beyond 1 are clipped
                warnings.simplefilter("ignore")
                action = policy.get_action(seen)
            action = action + NOISE * rng.standard_normal(4)
        action = np.clip(action, -LIMIT, LIMIT).astype(np.float32)
        state, reward, _, over, info = env.step(action)
        if driver is not None:
            seen = simulation.step(action)[0]
        states.append(state)
        actions.append(action)
        rewards.append(reward)
        solved += int(info["success"])
    return Episode(*(np.array(x, np.float32) for x in (states, actions, rewards)), False)
