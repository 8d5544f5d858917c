"""Which rows a batch is made of, as steps of the environment push the dataset's out."""

from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from small import config, random_dataset
from wording import refused

from corerl.algos import arsq, cqn
from corerl.buffers.mixed_replay import MixedReplay
from corerl.buffers.replay import ReplayBuffer
from corerl.data import tasks
from corerl.data.dataset import Dataset
from corerl.data.simulators import unit_box
from corerl.training import demonstrations
from corerl.training.demonstrations import Demos, Ranked, Rows
from corerl.training.offline_to_online import Online
from corerl.training.preprocessing import Preprocess
from corerl.training.run import Run

SEEDS, DEMOS, ROWS, CAPACITY = [0, 1], 50, 200, 300


def ranked(dataset) -> Ranked:
    """The rows of `dataset`, its rewards replaced by the rank of their episode."""
    ranks = dataset.episode_returns().argsort().argsort()
    ranks = np.repeat(ranks, dataset.episode_lengths()).astype(np.float32)
    labels = demonstrations._ranks(dataset)
    rows = dataset.transitions()
    return Ranked(
        rows._replace(rewards=ranks[rows.rows]), SEEDS, ROWS, "cpu", labels=labels[rows.rows]
    )


def source(added: int, share: float = 1.0, ratio: float | None = None) -> tuple[Rows, int]:
    """Rows after `added` steps whose reward is -1, and how many rows the dataset has."""
    data = ranked(random_dataset(400))
    replay = ReplayBuffer(3, 2, CAPACITY, SEEDS, ROWS)
    for _ in range(added):
        zeros = np.zeros(2)
        replay.add((np.zeros((2, 3)), np.zeros((2, 2)), zeros - 1, np.zeros((2, 3)), zeros, zeros))
    phases = SimpleNamespace(replay=replay, online=lambda step: step > 0, sample=lambda step: step)
    online = Online(capacity=CAPACITY, offline_ratio=ratio, warmup_steps=1)
    cfg = SimpleNamespace(demos=Demos(rows=DEMOS, share=share), batch_size=ROWS, online=online)
    run = SimpleNamespace(seeds=SEEDS, device="cpu")
    return Rows(cfg, run, data, phases), len(data)


def ranks(rows: Rows, step: int, count: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = torch.stack([rows.sample(step).rewards for _ in range(count)])
    return drawn[..., :DEMOS], drawn[..., DEMOS:]


def test_the_worst_episodes_are_pushed_out_first():
    """20 episodes of 20 rows (some rows fall out) in a replay of 300: the best 300, then 300 - added."""
    for step, added, lowest in ((0, 100, 5), (1, 0, 5), (1, 100, 10), (1, 299, 19)):
        rows, size = source(added)
        demos, others = ranks(rows, step)
        assert demos.min() == 0 and demos.max() == 19, "every row is a demonstration"
        of_data = others[others >= 0]
        missing = 400 - size  # time-limited rows; they shift the border by less than an episode
        assert lowest - missing / 20 - 1 <= of_data.min() <= lowest and of_data.max() == 19
        share = added / CAPACITY if step else 0.0
        assert (others < 0).double().mean() == pytest.approx(share, abs=0.02)


def test_a_full_replay_leaves_no_data_but_demonstrations():
    demos, others = ranks(source(CAPACITY + 5)[0], 1, count=3)
    assert (others == -1).all() and (demos >= 0).all()


def test_a_share_of_demonstrations_is_that_of_the_best():
    rows, _ = source(0, share=0.1)
    demos, _ = ranks(rows, 1)
    assert demos.min() == 18 and demos.max() == 19
    whole, _ = ranks(source(0, share=0.5)[0], 1)
    assert set(whole.unique().tolist()) >= set(range(11, 20)) and whole.min() >= 9


@pytest.mark.parametrize(("share", "best"), [(0.1, 1), (0.25, 1), (0.5, 2), (0.99, 3), (1.0, 4)])
def test_the_share_is_of_episodes_which_are_whole(share, best):
    """Episodes of 3, 30, 1 and 6 steps return 2, 3, 1 and 2."""
    lengths, returns = np.array([3, 30, 1, 6]), [2.0, 3.0, 1.0, 2.0]
    ends = np.isin(np.arange(40), lengths.cumsum() - 1)
    rewards = np.zeros(40, np.float32)
    rewards[ends] = returns
    column = np.arange(40, dtype=np.float32)[:, None]
    data = Dataset.from_steps("x", column, column * 0, rewards, column, ends, ends & False)
    ranks = demonstrations._ranks(data)
    found = Ranked(data.transitions(), [0], DEMOS, "cpu", labels=ranks)
    online = Online(offline_ratio=None)
    cfg = SimpleNamespace(demos=Demos(rows=DEMOS, share=share), batch_size=1, online=online)
    phases = SimpleNamespace(online=lambda step: False)
    rows = Rows(cfg, SimpleNamespace(seeds=[0], device="cpu"), found, phases)
    drawn = torch.cat([rows.sample(1).observations[:, :DEMOS] for _ in range(20)], 1)
    episodes = np.repeat(np.arange(4), lengths)
    expected = np.flatnonzero(np.isin(episodes, [1, 3, 0, 2][:best]))
    assert drawn.unique().tolist() == expected.tolist()


def test_a_share_counts_no_episode_without_a_transition():
    """The best one's only step has no next state, and so the next one is the demonstration."""
    column = np.arange(4, dtype=np.float32)[:, None]
    ends = np.array([False, True, False, True])
    data = Dataset.from_steps(
        "x", column, column * 0, [0, 1, 0, 2], column, ends & False, ends, [1, 1, 0, 0]
    )
    rows = data.transitions()
    labels = demonstrations._ranks(data)[rows.rows]
    assert Ranked(rows, [0], ROWS, "cpu", labels=labels).rows_of_best(0.5) == 2


@pytest.mark.parametrize("shift", [-1.0, 0.0, 1.0])
def test_the_best_episodes_are_not_the_shortest_or_longest_that_a_shift_makes_of_them(shift):
    """A success of 20 steps between failures of 5 and of 40."""
    lengths, won = np.array([5, 20, 40]), 24
    zeros = np.zeros((65, 1), np.float32)
    data = Dataset.from_arrays(
        zeros + np.arange(65, dtype=np.float32)[:, None],
        zeros,
        np.eye(65, dtype=np.float32)[won],
        np.isin(np.arange(65), lengths.cumsum() - 1),
        np.zeros(65, bool),
        zeros,
    )
    cfg = arsq.Config(data=Preprocess(reward_shift=shift))
    run = SimpleNamespace(dataset=lambda: data, cfg=SimpleNamespace(algo=cfg, history=1), seeds=[0])
    run.device = "cpu"
    best = demonstrations.load(run, cfg)[0].best(20).observations
    assert (best.amin(), best.amax()) == (5, won)


def test_rows_are_uniform_and_the_seeds_apart():
    demos, _ = ranks(source(0)[0], 1, count=400)
    for seed in range(2):
        counts = torch.bincount(demos[:, seed].flatten().long(), minlength=20).double()
        assert (counts / counts.sum()).max() < 0.06 and (counts / counts.sum()).min() > 0.035
    assert not torch.equal(demos[:, 0], demos[:, 1])


def test_a_fixed_share_is_the_mixtures():
    rows, _ = source(3, ratio=0.5)
    assert rows._experience(7) == 7  # handed on
    assert rows._experience(0).rewards.shape == (2, ROWS)  # before the switch there is only data
    data = rows._data
    mixture = MixedReplay(data, rows._phases.replay, 0.3, SEEDS, ROWS)
    drawn = torch.stack([mixture.sample().rewards for _ in range(30)])
    assert drawn[..., :60].min() == 0 and drawn[..., :60].max() == 19
    assert (drawn[..., 60:] == -1).all()


@pytest.mark.parametrize("module", [arsq, cqn])
def test_actions_without_bins_are_refused(module, tmp_path, monkeypatch):
    def unbounded(self):
        env = gymnasium.make("Pendulum-v1").unwrapped
        env.action_space = spaces.Box(-np.inf, np.inf, (1,))
        return unit_box(env)

    monkeypatch.setattr(tasks.Task, "make_training_env", unbounded)
    cfg = config(tmp_path, module.Config().name)
    with refused("actions"):
        module.train(cfg.algo, Run(cfg, [0], lambda *_: None))


def test_bad_settings_are_refused():
    for bad in ({"rows": 0}, {"share": 0.0}, {"share": 1.1}):
        with refused("algo.demos"):
            Demos(**bad)
