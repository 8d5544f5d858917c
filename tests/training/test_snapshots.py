"""Episodes that begin in a teacher's states: restored to the bit, drawn evenly, truncated, later no more."""

from collections import Counter
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch
from scipy import stats
from small import config, flatten, goes_on, train
from wording import refused

from corerl.cli import main
from corerl.data.tasks import resolve
from corerl.policies.load import load
from corerl.policies.snapshots import taken
from corerl.training.environments import Environments
from corerl.training.simulator_state import save_simulator
from corerl.training.snapshots import FromSnapshots, Snapper, Snapshots, Starts, classes, starting


def actions(count: int, width: int) -> np.ndarray:
    return np.random.default_rng(1).uniform(-1, 1, (count, width)).astype(np.float32)


def snapped(task, every: int = 10, steps: int = 40) -> tuple[Snapper, np.ndarray, list]:
    """An environment that was played, the actions, and what its steps returned."""
    env = Snapper(task.make_env(), every)
    env.reset(seed=3)
    played = actions(steps, env.action_space.shape[0])
    return env, played, [env.step(action.copy())[:2] for action in played]


def snapshots(task, kept: list, values=None) -> Snapshots:
    observations = torch.from_numpy(np.stack([seen for seen, _ in kept]))
    values = torch.arange(float(len(kept))) if values is None else values
    return Snapshots(task.id, observations, values, [state for _, state in kept])


@pytest.mark.parametrize("id", ["Pendulum-v1", "HalfCheetah-v5", "Hopper-v5", "Ant-v5"])
def test_an_episode_goes_on_from_a_snapshot_to_the_bit(id, tmp_path):
    task = resolve(f"gym/{id}")
    env, played, seen = snapped(task, steps=20)
    snapshots(task, env.kept).save(tmp_path / "s.safetensors")
    read = Snapshots.load(str(tmp_path / "s.safetensors"), task)
    other = FromSnapshots(task.make_env(), read, [np.array([1])], Starts())  # after ten steps
    first, _ = other.reset(seed=99)
    assert first.tobytes() == seen[9][0].tobytes()
    for action, (observation, reward) in zip(played[10:], seen[10:], strict=False):
        found = other.step(action.copy())
        assert found[0].tobytes() == observation.tobytes() and found[1] == reward
        if found[2]:
            break


def pendulum(until: int = 10**6, length: int = 7, values=None, seed: int = 0):
    task = resolve("gym/Pendulum-v1")
    env, *_ = snapped(task, every=1)
    made = snapshots(task, env.kept, values)
    members = classes(made.values.numpy().astype(float), 3)
    wrapped = FromSnapshots(task.make_env(), made, members, Starts(until=until, length=length))
    wrapped.reset(seed=seed)
    return wrapped, made, members


def test_starts_are_even_over_classes_and_over_their_members():
    values = torch.cat([torch.zeros(30), torch.full((8,), 5.0), torch.full((3,), 9.0)])
    env, made, members = pendulum(values=values)
    assert sorted(map(len, members)) == [3, 8, 30]
    names = {made.observations[i].numpy().tobytes(): i for i in range(len(values))}
    counts = Counter(names[env.reset()[0].tobytes()] for _ in range(6000))
    for rows in members:
        drawn = [counts[i] for i in rows]
        assert stats.binomtest(sum(drawn), 6000, 1 / 3).pvalue > 0.01
        assert stats.chisquare(drawn).pvalue > 0.01


def test_a_started_episode_is_truncated_and_later_ones_are_the_tasks():
    env, made, _ = pendulum(until=20)
    shown = {x.numpy().tobytes() for x in made.observations}
    lengths, started = [], []
    for _ in range(5):
        first, _ = env.reset()
        started.append(first.tobytes() in shown)
        ends = (env.step(np.zeros(1, np.float32))[2:4] for _ in range(400))
        lengths.append(1 + next(i for i, (over, cut) in enumerate(ends) if cut and not over))
    assert lengths == [7, 7, 7, 200, 200] and started == [True] * 3 + [False] * 2


def test_a_late_snapshot_has_its_whole_length():
    task = resolve("gym/Pendulum-v1")
    env, *_ = snapped(task, every=199, steps=199)
    made = snapshots(task, env.kept)
    late = FromSnapshots(task.make_env(), made, [np.array([1])], Starts(length=50))
    late.reset(seed=0)
    ends = [late.step(np.zeros(1, np.float32))[3] for _ in range(50)]
    assert ends == [False] * 49 + [True]


class Counting(gymnasium.Env):
    """Keeps the state that it is given and changes it in place."""

    observation_space = action_space = gymnasium.spaces.Box(-9, 9, (1,), np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = np.zeros(1)
        return self.count.copy(), {}

    def step(self, action):
        self.count += 1
        return self.count.copy(), 0.0, False, False, {}

    def state_dict(self):
        return {"count": torch.tensor(self.count)}

    def load_state_dict(self, state):
        self.count = state["count"].numpy()


def test_a_snapshot_stays_what_it_was():
    env = Counting()
    env.reset()
    made = Snapshots("x", torch.zeros(1, 1), torch.zeros(1), [save_simulator(env)])
    late = FromSnapshots(Counting(), made, [np.array([0])], Starts(length=3))
    for _ in range(2):
        late.reset()
        assert late.step(np.zeros(1))[0] == 1


def test_the_generator_stays_the_environments_own():
    """Else every start from one snapshot would meet the same noise."""
    env, *_ = pendulum()
    task = resolve("gym/Pendulum-v1").make_env()
    task.reset(seed=0)
    own = env.unwrapped.np_random.bit_generator.state
    assert own == task.unwrapped.np_random.bit_generator.state


def test_terminal_states_are_no_snapshots():
    class Short(gymnasium.Wrapper):
        def step(self, action):
            observation, reward, _, truncated, info = self.env.step(action)
            self.count = getattr(self, "count", 0) + 1
            return observation, reward, self.count == 4, truncated, info

    env = Snapper(Short(gymnasium.make("Pendulum-v1")), 2)
    env.env.reset(seed=0)
    kept = []
    env._keep = kept.append
    for _ in range(4):
        env.step(np.zeros(1, np.float32))
    assert len(kept) == 1


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, 1, 10, 11, 50], [[0, 1], [2, 3], [4]]),
        ([3, 3, 3], [[0, 1, 2]]),
        ([5, 1], [[1], [0]]),
    ],
)
def test_classes_are_clusters_of_values(values, expected):
    assert [x.tolist() for x in classes(np.array(values, float), 3)] == expected


def test_an_environment_among_others_goes_on_as_it_would(tmp_path):
    task = resolve("gym/Pendulum-v1")
    env, *_ = snapped(task)
    snapshots(task, env.kept).save(tmp_path / "s")
    make = starting(task, Starts(snapshots=str(tmp_path / "s"), length=5, until=60))
    envs, other = Environments(make, [0, 1]), Environments(make, [0, 1])
    played = torch.from_numpy(actions(90, 1))[:, None, None].expand(-1, 2, 1, 1)
    for action in played[:33]:
        envs.step(action)
    other.load_state_dict(envs.state_dict())
    for action in played[33:]:
        for mine, theirs in zip(envs.step(action), other.step(action), strict=True):
            assert mine.tobytes() == theirs.tobytes()
    assert not np.array_equal(envs.look()[0], envs.look()[1])


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    root = tmp_path_factory.mktemp("teacher")
    own = {"random_steps": 10}
    return train(config(root, "sac", own=own, task="gym/Pendulum-v1", seeds=2))


def test_a_teacher_is_played_and_valued(teacher):
    agent = load(teacher, 1)
    made = taken(agent, 2, 50)
    assert made.task == "gym/Pendulum-v1" and made.observations.shape == (8, 3)
    shown = made.observations.float()[None]
    q = agent.states()[0][1]["agent"].critic(shown, agent(shown))
    torch.testing.assert_close(made.values, q.amin(1)[0])
    env = resolve("gym/Pendulum-v1").make_env()
    env.reset(seed=0)
    assert flatten(made.simulators[0]).keys() == flatten(save_simulator(env)).keys()


@pytest.mark.parametrize("algo", ["td3", "sac"])
def test_a_run_from_snapshots_resumes_as_an_unbroken_one(algo, teacher, tmp_path, capsys):
    out = tmp_path / "starts.safetensors"
    command = [
        "data",
        "snapshots",
        str(teacher),
        "--out",
        str(out),
        "--episodes",
        "2",
        "--every",
        "20",
    ]
    assert main(command) == 0
    assert "20 snapshots of SAC on gym/Pendulum-v1, seed 0, 2 episodes" in capsys.readouterr().out
    own = {"random_steps": 10, "start": Starts(snapshots=str(out), length=6, until=25)}
    cfg = config(tmp_path, algo, own=own, task="gym/Pendulum-v1")
    goes_on(cfg, tmp_path, (18,), (0, 1))
    plain = replace(cfg, algo=replace(cfg.algo, start=Starts()), root=str(tmp_path / "plain"))
    mine, theirs = (train(x) for x in (replace(cfg, root=str(tmp_path / "mine")), plain))
    assert mine != theirs


def test_bad_input_is_refused(tmp_path, teacher, capsys):
    task, other = resolve("gym/Pendulum-v1"), resolve("gym/Hopper-v5")
    with refused("algo.start.snapshots corerl data snapshots RUN"):
        starting(task, Starts(snapshots=str(tmp_path / "none")))
    env, *_ = snapped(task)
    snapshots(task, env.kept).save(tmp_path / "s")
    with refused("algo.start.snapshots gym/Pendulum-v1 gym/Hopper-v5"):
        starting(other, Starts(snapshots=str(tmp_path / "s")))
    command = ["data", "snapshots", str(teacher), "--out", str(tmp_path / "x"), "--every", "0"]
    assert main(command) == 2
    assert "--every 0 must be positive" in capsys.readouterr().err
