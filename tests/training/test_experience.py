"""Training environments with discrete actions: restored exactly, refused with a reason, explored."""

from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from wording import refused

from corerl import seeding
from corerl.buffers.frame_replay import DiscreteStep
from corerl.data import tasks
from corerl.envs import atari
from corerl.runs.checkpoint import load_checkpoint, save_checkpoint
from corerl.training.evaluation import Evaluator
from corerl.training.experience import (
    Collect,
    DiscreteEnvironments,
    EpsilonGreedy,
    Experience,
    mixed,
)


def play(envs, seeds, steps):
    """Actions that are the same for the same seed in any company."""
    drawn = [
        [np.random.default_rng((step, s)).integers(envs.actions) for s in seeds] for step in steps
    ]
    return [envs.step(torch.tensor(actions)[:, None]) for actions in drawn]


def assert_same(ours, theirs, rows=slice(None)):
    for one, two in zip(ours, theirs, strict=True):
        for field, a, b in zip(one._fields, one, two, strict=True):
            assert a[rows].tobytes() == b.tobytes(), field


@pytest.mark.parametrize("task", ["gym/CartPole-v1", "maze/v0", "maze/v3-vector", "atari/Pong"])
def test_a_restored_environment_goes_on_to_the_bit_and_seeds_are_their_own(task, tmp_path):
    if task.startswith("atari/"):
        pytest.importorskip("ale_py")
    make, seeds = tasks.resolve(task).make_training_env, [0, 4]
    envs = DiscreteEnvironments(make, seeds)
    play(envs, seeds, range(40))
    save_checkpoint(tmp_path / "c", envs.state_dict())
    unbroken = play(envs, seeds, range(40, 90))
    other = DiscreteEnvironments(make, seeds)
    other.load_state_dict(load_checkpoint(tmp_path / "c"))
    assert_same(play(other, seeds, range(40, 90)), unbroken)
    alone = DiscreteEnvironments(make, [4])
    play(alone, [4], range(40))
    assert_same(unbroken, play(alone, [4], range(40, 90)), rows=slice(1, 2))


class Vectors(gymnasium.Env):
    """Announces two sources and, after two steps, gives three."""

    observation_space = spaces.Box(-1, 1, (2,), np.float64)
    action_space = spaces.Discrete(3)
    reward_space = spaces.Box(0, 1, (2,))
    left = 2

    def reset(self, *, seed=None, options=None):
        return np.zeros(2), {}

    def step(self, action):
        self.left -= 1
        vector = np.ones(2 if self.left >= 0 else 3)
        return np.zeros(2), vector.sum(), False, False, {"reward_vector": vector}


def test_reward_vectors_of_varying_length_are_refused():
    envs = DiscreteEnvironments(Vectors, [0])
    assert envs.sources == 2
    step = envs.step(torch.zeros(1, 1, dtype=torch.int64))
    assert step.sources.tolist() == [[1, 1]] and step.observations.dtype == np.float32
    envs.step(torch.zeros(1, 1, dtype=torch.int64))
    with refused("shape (3,) 2"):
        envs.step(torch.zeros(1, 1, dtype=torch.int64))


class Memory(Vectors):
    """Shows bytes that are no image."""

    observation_space = spaces.Box(0, 255, (6,), np.uint8)

    def reset(self, *, seed=None, options=None):
        return np.arange(6, dtype=np.uint8), {}


def test_bytes_that_are_no_image_are_numbers():
    envs = DiscreteEnvironments(Memory, [0])
    assert envs.dtype == torch.float32 and envs.look().tolist() == [[[0, 1, 2, 3, 4, 5]]]
    images = spaces.Box(0, 255, (3, 4, 4), np.uint8)
    change = {"observation_space": images, "reset": lambda self, **_: (images.sample(), {})}
    assert DiscreteEnvironments(type("Images", (Vectors,), change), [0]).dtype == torch.uint8


class Fragile(Vectors):
    """The one that is started with an odd seed crashes at its second step."""

    left = 10

    def reset(self, *, seed=None, options=None):
        self.odd = bool(seed and seed % 2)
        return super().reset(seed=seed)

    def step(self, action):
        if self.odd and self.left < 10:
            raise FloatingPointError("unstable")
        return super().step(action)


def test_a_crash_spares_the_other_seeds(capsys):
    parity = {seeding.derive(seed, "env") % 2: seed for seed in range(20)}
    envs = DiscreteEnvironments(Fragile, [parity[0], parity[1]])
    steps = [envs.step(torch.zeros(2, 1, dtype=torch.int64)) for _ in range(3)]
    assert f"seed {parity[1]} crashed (FloatingPointError: unstable)" in capsys.readouterr().err
    assert steps[0].sources.tolist() == [[1, 1], [1, 1]]
    for step in steps[1:]:
        assert step.sources[0].tolist() == [1, 1] and np.isnan(step.sources[1]).all()
        assert step.rewards[0] == 2 and np.isnan(step.rewards[1])
    envs._envs[0].odd = True
    with pytest.raises(FloatingPointError):
        envs.step(torch.zeros(2, 1, dtype=torch.int64))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"action_space": spaces.Box(-1, 1, (2,))}, "actions 0"),
        ({"action_space": spaces.Discrete(3, start=1)}, "actions 0"),
        ({"observation_space": spaces.Discrete(4)}, "vectors images"),
        ({"observation_space": spaces.Box(0, 1, (3, 3))}, "vectors images"),
    ],
)
def test_spaces_that_do_not_fit_are_refused(change, reason):
    kind = type("Changed", (Vectors,), change)
    with refused(reason):
        DiscreteEnvironments(kind, [0])


def step_of(reward, sources):
    zeros = np.zeros((1, 1), np.float32)
    flags = np.zeros(1, bool)
    vector = np.array([sources], np.float32)
    return DiscreteStep(zeros, np.zeros(1, int), np.array([reward]), zeros, flags, flags, vector)


@pytest.mark.parametrize(
    ("settings", "by_source", "expected"),
    [
        ({}, True, [10, 0, 100]),
        ({}, False, [210]),
        ({"residual": "last"}, True, [10, 0, 200]),
        ({"clip": "source"}, True, [1, 0, 1]),
        ({"clip": "source", "residual": "last"}, True, [1, 0, 1]),
        ({"clip": "source"}, False, [2]),  # MD3QN's authors' baselines
        ({"clip": "total"}, False, [1]),  # everybody else's
    ],
)
def test_what_is_learned_of_a_reward(settings, by_source, expected):
    step = step_of(210.0, [10, 0, 100])
    assert Collect(**settings).rewards(step, by_source).tolist() == [expected]
    assert step.sources.tolist() == [[10, 0, 100]]


def test_epsilon_falls_after_the_random_beginning():
    cfg = Collect(learning_starts=100, epsilon_steps=200, epsilon=0.1)
    values = [cfg.epsilon_at(step) for step in (1, 100, 200, 300, 10**6)]
    assert values == pytest.approx([1, 1, 0.55, 0.1, 0.1])


def test_a_turn_is_the_steps_up_to_its_own():
    played = []
    turn = SimpleNamespace(
        cfg=Collect(train_every=4), play_one=lambda number, act: played.append(number)
    )
    Experience.play(turn, 8, None)
    assert played == [5, 6, 7, 8]


@pytest.mark.parametrize(("lost", "kind"), [(True, "training"), (False, "whole")])
def test_a_lost_life_is_a_terminal_where_that_is_asked_for(lost, kind):
    made = []
    task = SimpleNamespace(
        id="x/y",
        make_env=lambda: made.append("whole") or Vectors(),
        make_training_env=lambda: made.append("training") or Vectors(),
    )
    run = SimpleNamespace(task=task, seeds=[0], device="cpu", cfg=SimpleNamespace(steps=10))
    Experience(Collect(life_loss=lost), run, 4, 0.9)
    assert made == [kind]


def test_no_update_in_the_random_beginning_or_without_a_whole_return():
    def enough(step, ready=True):
        cfg, replay = Collect(learning_starts=100), SimpleNamespace(ready=ready)
        return Experience.enough(SimpleNamespace(cfg=cfg, replay=replay), step)

    assert not enough(100) and enough(101) and not enough(101, ready=False)


class Ramp(Vectors):
    """Its step t pays t from one source and 1 from the other."""

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(2), {}

    def step(self, action):
        vector, self.t = np.array([self.t, 1.0]), self.t + 1
        return np.full(2, self.t, float), vector.sum(), False, False, {"reward_vector": vector}


def ramp(by_source: bool = False, env=Ramp, **own) -> Experience:
    task = SimpleNamespace(id="x/ramp", make_training_env=env)
    run = SimpleNamespace(task=task, seeds=[0, 1], device="cpu", cfg=SimpleNamespace(steps=40))
    return Experience(Collect(train_every=2, **own), run, 16, 0.5, by_source)


def always_two(observations):
    return torch.full(observations.shape[:2], 2)


@pytest.mark.parametrize("by_source", [True, False])
def test_a_batch_has_the_returns_that_are_asked_for(by_source):
    """Three steps from t on, discounted by 1/2: t + (t + 1) / 2 + (t + 2) / 4, and 1 + 1/2 + 1/4."""
    experience = ramp(by_source, n_step=3, capacity=20)
    for step in range(2, 31, 2):
        experience.play(step, always_two)
    assert len(experience.replay) == 20
    batch = experience.sample()
    t = batch.observations[..., 0]
    sources = torch.stack([1.75 * t + 1, torch.full_like(t, 1.75)], -1)
    torch.testing.assert_close(
        batch.rewards, sources if by_source else sources.sum(-1, keepdim=True)
    )
    assert torch.equal(batch.next_observations[..., 0], t + 3)
    assert (batch.discounts == 0.125).all()


def test_chance_plays_before_learning_starts_and_the_policy_after_it():
    experience = ramp(learning_starts=10, epsilon_steps=1, epsilon=0.0)
    for step in range(2, 31, 2):
        experience.play(step, always_two)
    played = experience.replay._actions[:, :30]
    assert (played[:, 10:] == 2).all() and (played[:, :10] != 2).any(1).all()


def test_an_episode_that_a_resumed_run_cannot_go_on_with_is_cut_in_the_replay():
    """It bootstraps at what its last step reached, and the next one begins as after a reset."""
    experience = ramp()
    for step in range(2, 11, 2):
        experience.play(step, always_two)
    experience.end_episodes(np.array([False, True]), np.full((2, 2), 77.0))
    for step in range(12, 15, 2):
        experience.play(step, always_two)
    batch = experience.replay._transitions(torch.tensor([[9], [9]]))
    assert batch.next_observations[:, 0, 0].tolist() == [10, 77]
    assert batch.discounts.tolist() == [[0.5], [0.5]]


def test_actions_are_random_as_often_as_they_should_be():
    draws = torch.rand(1, 20_000, 2, generator=torch.Generator().manual_seed(0))
    greedy = torch.full((1, 20_000), 3)
    counts = torch.bincount(mixed(greedy, draws, 0.4, 4)[0], minlength=4)
    torch.testing.assert_close(
        counts / 20_000, torch.tensor([0.1, 0.1, 0.1, 0.7]), atol=0.01, rtol=0
    )
    assert torch.equal(mixed(greedy, draws, 0.0, 4), greedy)
    alone = torch.bincount(mixed(None, draws, 0.0, 4)[0], minlength=4)
    assert (alone / 20_000 - 0.25).abs().max() < 0.015


def chance(seeds):
    return EpsilonGreedy(lambda x: torch.zeros(x.shape[:2], dtype=torch.int64), 0.5, 2, seeds)


def test_an_evaluated_policy_goes_on_with_its_own_chance():
    one, other, observations = chance([2, 7]), chance([2, 7]), torch.zeros(2, 50, 3)
    assert torch.equal(one(observations), other(observations))
    other.load_state_dict(one.state_dict())
    for policy in (one, other):
        policy.begin(2, 50)
    assert torch.equal(one(observations), other(observations))
    assert not torch.equal(one(observations)[0], one(observations)[1])


@pytest.mark.parametrize("company", [[3, 4], [0, 3]])
def test_how_long_others_play_does_not_change_a_seed_s_chance(company):
    def returns(seeds):
        make, policy = tasks.resolve("gym/CartPole-v1").make_env, chance(seeds)
        evaluator = Evaluator(make, seeds, episodes=4, at_once=2)
        played = [evaluator(policy).returns[seeds.index(3)] for _ in range(2)]
        evaluator.close()
        return np.concatenate(played).tolist()

    alone = returns([3])
    assert alone == returns(company) and alone[:4] != alone[4:]


@pytest.mark.parametrize(
    "bad", [{"epsilon": 1.5}, {"n_step": 0}, {"clip": "sign"}, {"residual": "first"}]
)
def test_settings_out_of_range(bad):
    with refused("algo.data"):
        Collect(**bad)


class Cards(gymnasium.Env):
    """Three steps of reward 1, cut by the clock; `stack` are chips, `game_over` that the bank is broke."""

    observation_space = spaces.Box(-1, 1, (6,), np.float32)
    action_space = spaces.Discrete(2)
    stack = 3

    def __init__(self):
        self.count = 0

    def reset(self, *, seed=None, options=None):
        self.count = 0
        return np.zeros(6, np.float32), {}

    def step(self, action):
        self.count += 1
        return np.zeros(6, np.float32), 1.0, False, self.count == 3, {"game_over": False}


class Lives(Cards, atari.Atari):
    """A game whose every other life is the last."""

    lives, stack = 0, 4

    def step(self, action):
        shown, reward, _, over, _ = super().step(action)
        self.lives += over
        return shown, reward, over, False, {"game_over": over and self.lives % 2 == 0}


def test_an_environments_own_words_are_not_ataris():
    for kind, stack, total in ((Cards, 1, 3), (Lives, 4, 6)):
        envs = DiscreteEnvironments(kind, [0])
        play(envs, [0], range(9))
        assert (envs.stack, envs.episode_returns.tolist()) == (stack, [total])


def test_returns_of_training_episodes_are_told():
    experience = ramp(env=Cards)
    experience.play(2, None)
    assert experience.metrics()["episode_return"].isnan().all()
    experience.play(4, None)
    assert experience.metrics()["episode_return"].tolist() == [3, 3]
