"""The training environments go on exactly where they were, and the replay keeps what they gave."""

from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import wrappers
from small import flatten
from wording import refused, says

from corerl.buffers.replay import ReplayBuffer
from corerl.data import tasks
from corerl.runs.checkpoint import load_checkpoint, save_checkpoint
from corerl.seeding import derive
from corerl.training.environments import Environments
from corerl.training.offline_to_online import EndReward
from corerl.training.simulator_state import opaque, save_simulator


def environments(id, seeds):
    return Environments(tasks.resolve(f"gym/{id}").make_env, seeds)


def actions(step, seeds, width):
    """(S, 1, A) on [-1, 1], the same for the same seed in any company."""
    return torch.stack(
        [
            2 * torch.rand(1, width, generator=torch.Generator().manual_seed(1000 * step + s)) - 1
            for s in seeds
        ]
    )


def play(envs, seeds, steps):
    return [envs.step(actions(step, seeds, envs.action_dim)) for step in steps]


def assert_same(ours, theirs):
    for one, two in zip(ours, theirs, strict=True):
        for field, a, b in zip(one._fields, one, two, strict=True):
            assert a.tobytes() == b.tobytes(), field


@pytest.mark.parametrize(
    "id",
    [
        *("Hopper-v4", "HalfCheetah-v4", "Walker2d-v4", "InvertedPendulum-v4", "Pendulum-v1"),
        *("Ant-v5", "Humanoid-v5", "Swimmer-v5", "Reacher-v5", "Pusher-v5"),
        *("InvertedDoublePendulum-v5", "MountainCarContinuous-v0"),
        "corerl.envs.goal_maze:corerl/GoalMaze",
    ],
)
def test_a_restored_environment_goes_on_to_the_bit(id, tmp_path):
    seeds = [0, 4]
    envs = environments(id, seeds)
    play(envs, seeds, range(70))
    save_checkpoint(tmp_path / "c", envs.state_dict())
    unbroken = play(envs, seeds, range(70, 200))
    other = environments(id, seeds)
    other.load_state_dict(load_checkpoint(tmp_path / "c"))
    assert_same(play(other, seeds, range(70, 200)), unbroken)
    returns = [e.episode_returns.numpy().tobytes() for e in (other, envs)]  # NaN where none ended
    assert returns[0] == returns[1]


@pytest.mark.parametrize(
    "id",
    [
        *("gym/Ant-v5", "gym/Pendulum-v1", "gym/CartPole-v1", "maze/v3-vector"),
        *("risk/A", "risk/pointmass", "risk/arbitrage", "risk/Hopper-stochastic-v4"),
    ],
)
def test_what_is_saved_stays_when_the_simulator_goes_on(id):
    env = replace(tasks.resolve(id), history=2).make_env()
    env.reset(seed=0)
    env.action_space.seed(0)
    saved = save_simulator(env)
    before = flatten(saved)
    env.step(env.action_space.sample())
    assert flatten(saved) == before != flatten(save_simulator(env))


def test_a_seed_meets_the_same_states_alone_as_in_company():
    both, alone = environments("Hopper-v4", [2, 9]), environments("Hopper-v4", [9])
    for two, one in zip(play(both, [2, 9], range(80)), play(alone, [9], range(80)), strict=True):
        for a, b in zip(two, one, strict=True):
            assert a[1:].tobytes() == b.tobytes()


def test_steps_are_gymnasium_s_own():
    envs = environments("Hopper-v4", [3])
    reference = gymnasium.make("Hopper-v4", disable_env_checker=True)
    observation, _ = reference.reset(seed=derive(3, "env"))
    total, ended = 0.0, 0
    for number, step in enumerate(play(envs, [3], range(150))):
        np.testing.assert_array_equal(step.observations[0], observation.astype(np.float32))
        action = actions(number, [3], 3)[0, 0].numpy()
        observation, reward, terminated, truncated, _ = reference.step(action)
        np.testing.assert_array_equal(step.next_observations[0], observation.astype(np.float32))
        assert (step.rewards[0], step.terminated[0]) == (reward, terminated)
        total += reward
        if terminated or truncated:
            ended, total, last = ended + 1, 0.0, total
            observation, _ = reference.reset()
    assert ended > 2
    assert envs.episode_returns[0] == pytest.approx(last, rel=1e-6)


def test_a_time_limit_is_truncated_and_never_terminated():
    envs = Environments(
        lambda: gymnasium.make("Pendulum-v1", max_episode_steps=7, disable_env_checker=True), [0, 1]
    )
    assert envs.episode_returns.isnan().all()
    steps = play(envs, [0, 1], range(15))
    assert torch.isfinite(envs.episode_returns).all()
    assert [bool(step.truncated.all()) for step in steps] == [i % 7 == 6 for i in range(15)]
    assert not any(step.terminated.any() for step in steps)
    # The state reached is kept, and the next step starts elsewhere.
    assert (steps[6].next_observations != steps[7].observations).any()
    assert (steps[5].next_observations == steps[6].observations).all()


def test_an_end_at_the_time_limit_is_an_end():
    env = gymnasium.make("Pendulum-v1", disable_env_checker=True).unwrapped
    env.step = lambda action: (np.zeros(3, np.float32), 1.0, True, True, {})
    step = Environments(lambda: env, [0]).step(torch.zeros(1, 1, 1))
    assert (step.terminated.tolist(), step.truncated.tolist()) == ([True], [False])


class Foreign(gymnasium.Env):
    """An environment whose insides nobody knows."""

    observation_space = gymnasium.spaces.Box(-9, 9, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.normal(size=1).astype(np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 1.0, False, False, {}


def test_steps_of_unequal_durations_are_refused():
    """As one unit each, slow steps would look as good as fast ones."""
    slow = type("Slow", (Foreign,), {"longest": 9})
    with refused("durations dqn qr_dqn iqn iql"):
        Environments(slow, [0])
    assert Environments(type("Even", (Foreign,), {"longest": 1}), [0]).look().shape == (1, 1, 1)


class InPlace(Foreign):
    """It scales the action that it is given in place, and shows its state's own memory."""

    def reset(self, *, seed=None, options=None):
        self.state, info = super().reset(seed=seed)
        return self.state, info

    def step(self, action):
        action *= 0.5
        self.state += action
        return self.state, 1.0, False, False, {}


def test_an_environment_may_write_into_what_it_was_given_and_shows():
    step = Environments(InPlace, [0, 1]).step(torch.full((2, 1, 1), 0.8))
    assert step.actions.tolist() == [[pytest.approx(0.8)]] * 2
    np.testing.assert_allclose(step.next_observations - step.observations, 0.4, rtol=1e-5)


@pytest.mark.parametrize(
    ("method", "returned", "reported"),
    [
        ("reset", np.zeros(2), "reset observation info"),
        ("step", (np.zeros(2), np.array([1.0]), False, False, {}), "(1,)"),
        ("step", (np.zeros(2), 1.0, False, {}), "step five"),
    ],
)
def test_what_is_not_gymnasiums_is_told_in_a_sentence(method, returned, reported):
    env = Foreign()
    setattr(env, method, lambda *given, **named: returned)
    with refused(reported, ValueError):
        Environments(lambda: env, [0]).step(torch.zeros(1, 1, 1))


def test_an_environment_that_cannot_be_restored_says_so_and_begins_an_episode(capsys):
    envs = Environments(Foreign, [0])
    first = envs.look().item()
    play(envs, [0], range(3))
    again = Environments(Foreign, [0])
    again.load_state_dict(envs.state_dict())
    assert again.episode_returns.isnan().all()  # what was cut is no episode's return
    says(capsys.readouterr().err, "episode")
    assert again.look().item() not in (0, first)
    assert again.cut.seeds.tolist() == [True] and again.cut.reached.tolist() == [[0.0]]
    met, once_more = again.look().item(), Environments(Foreign, [0])
    once_more.load_state_dict(again.state_dict())
    assert once_more.look().item() not in (
        first,
        met,
    )  # every resumed run begins with another state
    assert not once_more.cut.seeds.any()  # the one that was begun anew had no step yet


def test_an_environment_that_seeds_numpys_global_generator_gets_a_seed_that_it_takes():
    class Global(Foreign):
        def reset(self, *, seed=None, options=None):
            np.random.RandomState(seed)
            return super().reset(seed=seed)

    envs, again = (Environments(Global, range(40)) for _ in range(2))
    met = envs.look().flatten().tolist()
    again.load_state_dict(envs.state_dict())  # of which none can be restored
    assert len({*met, *again.look().flatten().tolist()}) == 80


def test_an_episode_without_a_step_is_none_that_a_resumed_run_cuts(capsys):
    envs = Environments(Foreign, [0, 1])
    envs._envs[1].step = lambda action: (np.ones(1, np.float32), 1.0, True, False, {})
    play(envs, [0, 1], range(3))  # the second has just ended one
    again = Environments(Foreign, [0, 1])
    again.load_state_dict(envs.state_dict())
    assert again.cut.seeds.tolist() == [True, False]


class Counted(gymnasium.Wrapper):
    """Rewards grow with the steps since the environment was made, of which only it knows."""

    count = 0

    def step(self, action):
        self.count += 1
        observation, reward, *ends = self.env.step(action)
        return observation, reward + self.count, *ends


class Saved(Counted):
    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


def resumed(make, tmp_path):
    """The next steps of an environment, and of one that was restored from it."""
    envs = Environments(make, [0])
    play(envs, [0], range(5))
    save_checkpoint(tmp_path / "c", envs.state_dict())
    again = Environments(make, [0])
    again.load_state_dict(load_checkpoint(tmp_path / "c"))
    return play(envs, [0], range(5, 9)), play(again, [0], range(5, 9))


@pytest.mark.parametrize(
    "wrap",
    [
        *(Counted, wrappers.NormalizeObservation, wrappers.NormalizeReward),
        *(wrappers.TimeAwareObservation, lambda env: wrappers.TimeLimit(env, 150)),
    ],
)
def test_a_wrapper_whose_state_nobody_knows_makes_it_one_that_cannot_be_restored(
    wrap, tmp_path, capsys
):
    def make():  # above and below others
        return wrappers.TimeLimit(wrap(tasks.resolve("gym/Pendulum-v1").make_env()), 100)

    resumed(make, tmp_path)
    reported = capsys.readouterr().err
    says(reported, "episode state_dict")


@pytest.mark.parametrize(
    "wrap",
    [Saved, lambda env: wrappers.RecordEpisodeStatistics(wrappers.ClipReward(env, -1, 1))],
)
def test_a_wrapper_that_saves_its_state_or_has_none_is_restored(wrap, tmp_path, capsys):
    assert_same(*resumed(lambda: wrap(tasks.resolve("gym/Pendulum-v1").make_env()), tmp_path))
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    "id", ["gym/Hopper-v4", "d4rl/ant-medium-v2", "risk/HalfCheetah-stochastic-v4"]
)
def test_environments_of_corerl_over_gymnasium_s_can_be_saved(id):
    task = replace(tasks.resolve(id), action_range=((-0.5,), (0.5,)), history=2)
    env = EndReward(task.make_env(), 3.0)
    env.reset(seed=0)
    assert opaque(env) is None and save_simulator(env)["frames"].shape[0] == 2


def test_an_end_reward_ends_the_steps_that_it_ends_in_the_data():
    class Pays(gymnasium.Env):
        def step(self, action):
            return np.zeros(1, np.float32), action, False, False, {}

    env = EndReward(Pays(), 0.3)
    data = np.array([0.1 + 0.2, 0.3, 0.31])
    ends = (data.astype(np.float32) == np.float32(0.3)).tolist()
    assert [bool(env.step(reward)[2]) for reward in data] == ends == [True, True, False]


def test_a_diverged_seed_acts_as_zero():
    envs = environments("Pendulum-v1", [0, 1])
    step = envs.step(torch.tensor([[[torch.nan]], [[0.5]]]))
    assert step.actions[:, 0].tolist() == [0, 0.5]
    assert np.isfinite(step.next_observations).all()


def discrete(position, seeds=2, width=3):
    """A step of which every number says the seed and the position."""
    state = np.full((seeds, width), position, np.float32) + 1000 * np.arange(seeds)[:, None]
    flag = np.full(seeds, position % 5 == 4)
    return state, state[:, :2] / 2, state[:, 0] + 0.25, state + 1, flag, ~flag


def test_the_ring_keeps_the_latest_and_every_row_stays_whole():
    replay = ReplayBuffer(3, 2, 10, [0, 1], 500)
    for position in range(4):
        replay.add(discrete(position))
    assert set(replay.sample().observations[0, :, 0].tolist()) == {0, 1, 2, 3}
    for position in range(4, 23):
        replay.add(discrete(position))
    batch = replay.sample()
    for seed in range(2):
        states = batch.observations[seed, :, 0] - 1000 * seed
        assert set(states.tolist()) == set(range(13, 23))
    assert torch.equal(batch.next_observations, batch.observations + 1)
    assert torch.equal(batch.actions, batch.observations[..., :2] / 2)
    assert torch.equal(batch.rewards, batch.observations[..., 0] + 0.25)
    assert torch.equal(batch.terminated, (batch.observations[..., 0] % 5 == 4).float())
    for seed in range(2):
        recorded = replay.recorded(seed)
        expected = [np.stack(column) for column in zip(*map(discrete, range(13, 23)), strict=True)]
        for mine, column in zip(recorded, expected, strict=True):
            np.testing.assert_array_equal(mine, column[:, seed])


def test_truncation_is_stored_and_does_not_reach_the_batch():
    for truncated in (False, True):
        replay = ReplayBuffer(1, 1, 1, [0], 4)
        one = np.ones((1, 1), np.float32)
        replay.add((one, one, one[0], one, np.zeros(1, bool), np.array([truncated])))
        assert not replay.sample().terminated.any()
        assert replay.recorded()[5].tolist() == [truncated]


def test_rows_are_drawn_uniformly_and_by_the_seed_alone():
    def counts(seeds):
        replay = ReplayBuffer(1, 1, 8, seeds, 4000)
        for position in range(8):
            state, *rest = discrete(position, len(seeds), 1)
            replay.add((state, state, *rest[1:]))
        return replay.sample().observations[:, :, 0]

    both, alone = counts([0, 6]), counts([6])
    assert torch.equal(both[1] - 1000, alone[0])
    drawn = torch.bincount(both[0].long(), minlength=8)
    assert ((drawn - 500).abs() < 5 * 500**0.5).all()


def test_a_restored_replay_draws_the_same_batches():
    replay, other = (ReplayBuffer(3, 2, 10, [0, 1], 5) for _ in range(2))
    for position in range(13):
        replay.add(discrete(position))
        replay.sample()
    other.load_state_dict(replay.state_dict())
    for position in range(13, 40):
        for mine, theirs in zip(replay.sample(), other.sample(), strict=True):
            assert torch.equal(mine, theirs)
        replay.add(discrete(position))
        other.add(discrete(position))


def test_a_million_transitions_of_halfcheetah_take_under_200_MB():
    assert ReplayBuffer(17, 6, 1_000_000, [0], 256).nbytes < 200e6
