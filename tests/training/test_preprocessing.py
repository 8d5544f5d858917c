"""What reaches an algorithm of a dataset with a timed-out episode, by hand.

Episode 0: three steps to a terminal state, returns 7. Episode 1: three steps to a time limit, whose last
row (reward 32) has no next state; returns 8 + 16 + 32 = 56.
"""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from agreement import generators
from wording import lacking, refused

from corerl.algos import bc, bcq_discrete, dt, iql, rebrac, td3_bc
from corerl.data.dataset import Dataset
from corerl.data.observations import with_history
from corerl.data.tasks import resolve
from corerl.nn import networks
from corerl.nn.learner import Spec
from corerl.training import preprocessing
from corerl.training.windows import load_windows

OBS = np.arange(6.0)[:, None]
DATASET = Dataset.from_steps(
    "test/six",
    OBS,
    [[-1], [-0.5], [0], [0.5], [1], [0.25]],
    [1, 2, 4, 8, 16, 32],
    OBS + 1,
    terminated=[0, 0, 1, 0, 0, 0],
    truncated=[0, 0, 0, 0, 0, 1],
    has_next=[1, 1, 1, 1, 1, 0],
)


def stand_in(algo) -> SimpleNamespace:
    return SimpleNamespace(
        cfg=SimpleNamespace(algo=algo.Config(), history=1),
        seeds=[0],
        device="cpu",
        task=resolve("corerl/pendulum"),
        dataset=lambda: DATASET,
    )


def load(data: preprocessing.Preprocess, algo=bc, **options):
    """The rows that `offline.load` makes, by the state they start in, and the normaliser."""
    buffer, normalizer = preprocessing.load(stand_in(algo), data, 256, **options)
    batch = buffer.sample()
    raw = batch.observations[0, :, 0] * normalizer.std + normalizer.mean
    first = {round(float(o)): i for i, o in enumerate(raw)}
    return {o: type(batch)(*(x[0, i] for x in batch)) for o, i in sorted(first.items())}, normalizer


def test_the_row_of_the_time_limit_is_left_out_and_its_bootstrap_never_cut():
    rows, _ = load(preprocessing.Preprocess())
    assert list(rows) == [0, 1, 2, 3, 4]
    assert [float(r.terminated) for r in rows.values()] == [0, 0, 1, 0, 0]


def test_next_actions_are_the_raw_ones_even_of_the_row_left_out():
    rows, _ = load(preprocessing.Preprocess(), rebrac, next_actions=True)
    assert [float(rows[i].next_actions) for i in (0, 1, 3, 4)] == [-0.5, 0, 1, 0.25]


def test_next_actions_are_clipped_like_actions():
    rows, _ = load(preprocessing.Preprocess(clip_actions=0.25), rebrac, next_actions=True)
    for field, expected in (
        ("actions", [-0.25, -0.25, 0.25, 0.25]),
        ("next_actions", [-0.25, 0, 0.25, 0.25]),
    ):
        assert [float(getattr(rows[i], field)) for i in (0, 1, 3, 4)] == expected


def test_the_return_range_counts_the_last_reward_of_a_timed_out_episode():
    rows, _ = load(preprocessing.Preprocess(return_range=True))
    # 1000 / (56 - 7); over the filtered rows it would be 1000 / (24 - 7).
    assert [float(r.rewards) for r in rows.values()] == pytest.approx(
        [x * 1000 / 49 for x in (1, 2, 4, 8, 16)]
    )


def test_scale_comes_before_shift():
    rows, _ = load(preprocessing.Preprocess(reward_scale=10.0, reward_shift=-5.0))
    assert float(rows[1].rewards) == 15


def test_the_end_reward_is_the_recorded_one_and_cuts_the_bootstrap():
    rows, _ = load(preprocessing.Preprocess(end_reward=8.0, reward_shift=-4.0))
    assert [float(r.terminated) for r in rows.values()] == [0, 0, 1, 1, 0]
    assert [float(r.rewards) for r in rows.values()] == [-3, -2, 0, 4, 12]


def test_ten_percent_bc_keeps_the_best_episode_by_its_full_return():
    rows, _ = load(preprocessing.Preprocess(), best=0.1)
    assert list(rows) == [3, 4]


def test_the_best_episodes_are_those_that_the_end_reward_makes():
    """They return 7, 8 and 48; before, the better one of two would begin a step earlier."""
    rows, _ = load(preprocessing.Preprocess(end_reward=8.0), best=0.34)
    assert list(rows) == [4]


@pytest.mark.parametrize(("end", "states"), [(None, {3, 4}), (8.0, {4}), (32.0, {3, 4, 5})])
def test_demonstrations_end_where_the_end_reward_says(end, states):
    data = preprocessing.Preprocess(end_reward=end)
    normalizer = networks.Normalizer.of(np.zeros(1), np.ones(1))
    buffer = preprocessing.load_demonstrations(stand_in(bc), data, 64, normalizer)
    batch = buffer.sample()
    assert set(batch.observations.flatten().tolist()) == states
    ended = batch.terminated[batch.rewards == end]
    assert ended.all() and (len(ended) > 0) == (end == 32)


@pytest.mark.parametrize("normalized", [False, True])
def test_states_that_saturate_a_policy_are_warned_of_unless_they_are_normalised(capsys, normalized):
    far = replace(DATASET, observations=DATASET.observations - 60)
    run = stand_in(bc)
    run.dataset = lambda: far
    preprocessing.load(run, preprocessing.Preprocess(normalize_states=normalized), 1)
    assert ("test/six is 58 on average, which" in capsys.readouterr().err) != normalized


@pytest.mark.parametrize("history", [1, 3])
@pytest.mark.parametrize("learner", ["sequence", "next action", "step", "discrete"])
@pytest.mark.parametrize("rows", [[0, 1, 2, 3], [2, 0, 3, 1]])
def test_rows_out_of_order_are_warned_of_where_the_next_one_counts(capsys, learner, rows, history):
    states = np.arange(5.0)[:, None]
    shuffled = Dataset.from_arrays(
        states[rows],
        np.arange(4) % 2 if learner == "discrete" else states[rows] / 5,
        np.zeros(4),
        next_observations=states[1:][rows],
        truncated=[0, 0, 0, 1],
    )
    run = stand_in(bcq_discrete if learner == "discrete" else bc)
    run.cfg.history, run.dataset = history, lambda: with_history(shuffled, history)
    if learner == "sequence":
        load_windows(dt.Config(context=2), run)
    elif learner == "discrete":
        run.task = resolve("corerl/cartpole")
        preprocessing.load_discrete(run, run.cfg.algo.data, 1)
    else:
        data = preprocessing.Preprocess()
        preprocessing.load(run, data, 1, next_actions=learner == "next action")
    text = capsys.readouterr().err
    follows = history > 1 or learner in ("sequence", "next action")
    assert (not lacking(text, "3 4 rows arrays")) == (rows[0] == 2 and follows)
    assert ("history=3" in text) == (rows[0] == 2 and history == 3)


def test_bc_ranks_episodes_by_discounted_returns_where_asked():
    rewards = np.float32([2, 0, 0, 0, 1, 3])  # 2 and 4; at a quarter 2 and 0.44

    class Loaded(Exception):
        pass

    def spec(buffer, normalizer):
        raise Loaded(normalizer.mean.item())

    run = stand_in(bc)
    run.dataset, run.spec = lambda: DATASET.with_rewards(rewards), spec
    for discount, mean in ((1.0, "3.5"), (0.25, "1.0")):  # of states 3 and 4; of 0 and 1
        with pytest.raises(Loaded, match=mean):
            bc.train(bc.Config(best=0.5, best_discount=discount), run)


def test_what_is_kept_is_what_states_are_normalised_with():
    _, normalizer = load(bc.Config().data, best=0.1)
    assert normalizer.mean.item() == 3.5  # of states 3 and 4


def test_rows_are_weighed_by_recorded_returns_and_labelled_by_learned_ones():
    labelled = []

    def labels(dataset):
        labelled.append(dataset.rewards.tolist())
        return dataset.rewards

    data = preprocessing.Preprocess(weighting="top", weighting_share=0.5, reward_scale=-1.0)
    rows, _ = load(data, labels=labels)
    assert list(rows) == [
        3,
        4,
    ]  # of the episode that returns 56, not of the one that is learned as -7
    assert labelled == [[-1, -2, -4, -8, -16, -32]]


def test_labels_and_weights_stay_with_their_rows_where_one_before_them_is_left_out():
    """The first episode is the one that is timed out; the second is drawn alone."""
    first, second = np.eye(6)[2], np.eye(6)[5]
    zeros, rewards = np.zeros((6, 1)), [1, 2, 4, 8, 16, 32]
    timed = Dataset.from_steps(
        "test/timed", OBS, zeros, rewards, OBS + 1, second, first, has_next=1 - first
    )
    run = stand_in(bc)
    run.dataset = lambda: timed
    data = preprocessing.Preprocess(weighting="top", weighting_share=0.5)
    buffer, _ = preprocessing.load(run, data, 256, labels=lambda dataset: dataset.rewards)
    batch, labels = buffer.sample_labelled()
    assert torch.equal(labels, batch.rewards) and labels.unique().tolist() == [8, 16, 32]


def test_iql_clips_the_data_to_the_open_interval():
    rows, _ = load(iql.Config().data, iql)
    limit = np.float32(1 - 1e-5)
    assert [float(rows[i].actions) for i in (0, 3, 4)] == [-limit, 0.5, limit]


def test_states_are_normalised_with_the_filtered_rows_and_a_thousandth():
    rows, normalizer = load(bc.Config().data)
    # States 0 to 4: mean 2, standard deviation sqrt(2); the policy normalises what it sees the same way.
    assert float(rows[4].observations) == pytest.approx(2 / (2**0.5 + 1e-3))
    assert float(rows[4].next_observations) == pytest.approx(3 / (2**0.5 + 1e-3))
    assert normalizer(torch.tensor([4.0])).item() == pytest.approx(2 / (2**0.5 + 1e-3))


def test_equal_returns_have_no_range():
    dataset = DATASET.with_rewards(np.zeros(6))
    with refused("episodes test/six 0"):
        preprocessing.preprocessed_rewards(dataset, preprocessing.Preprocess(return_range=True))


@pytest.mark.parametrize(
    ("agent", "cfg"),
    [
        (bc.BC, bc.Config()),
        (td3_bc.TD3BC, td3_bc.Config()),
        (iql.IQL, iql.Config()),
        (rebrac.ReBRAC, rebrac.Config()),
    ],
)
def test_a_policy_normalises_the_observations_that_it_sees(agent, cfg):
    mean, std = np.array([1.0, -2.0]), np.array([0.5, 3.0])
    normalizer = networks.Normalizer.of(mean, std)
    raw = torch.tensor([[[0.5, 1.0], [1.0, -5.0]]])
    acting = agent(cfg, Spec(2, 1, generators(1), normalizer=normalizer)).act(raw)
    plain = agent(cfg, Spec(2, 1, generators(1)))  # the same weights
    expected = plain.act(torch.tensor([[[-1.0, 1.0], [0.0, -1.0]]]))
    torch.testing.assert_close(acting, expected)
    assert not torch.equal(plain.act(raw), expected)
