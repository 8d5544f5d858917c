"""Rows drawn by their episode's return: closed forms, the law of the draws, and old names."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from small import config, random_dataset, train
from wording import refused, says

from corerl import seeding
from corerl.algos import bc, cql, cql_discrete, dt, iql
from corerl.buffers.replay import OfflineBuffer
from corerl.buffers.sequences import SequenceBuffer
from corerl.config import Config
from corerl.data.dataset import Dataset
from corerl.data.tasks import resolve
from corerl.envs import pendulum
from corerl.runs.directory import config_hash
from corerl.training import preprocessing, weighting
from corerl.training.preprocessing import Preprocess
from corerl.training.weighting import Weighting, probabilities


def uneven() -> Dataset:
    """Three episodes of 2, 3 and 1 steps that return 3, 6 and 9, from states 0, 10 and 20."""
    return Dataset.from_steps(
        "test/uneven",
        np.array([0.0, 1, 10, 11, 12, 20])[:, None],
        np.zeros((6, 1)),
        [1, 2, 2, 2, 2, 9],
        np.ones((6, 1)),
        terminated=[0, 1, 0, 0, 1, 1],
        truncated=np.zeros(6),
    )


ROWS = np.arange(6)


def test_return_weights_by_hand(capsys):
    p = probabilities(uneven(), Weighting("return", weighting_alpha=0.5), ROWS)
    w = np.exp(np.array([0, 0, 0.5, 0.5, 0.5, 1]) / 0.5)
    np.testing.assert_allclose(p, w / w.sum(), rtol=1e-12)
    effective = w.sum() ** 2 / (w**2).sum()
    says(capsys.readouterr().err, f"{effective:,.0f} 6")


def test_advantages_leave_out_what_the_first_state_explains():
    """Here the returns are linear in it, so nothing is left; with another return the fit by hand."""
    with refused("first state"):
        probabilities(uneven(), Weighting("advantage"), ROWS)
    rewards = np.array([1, 2, 2, 2, 2, 0.0])  # returns 3, 6, 0 at states 0, 10, 20
    data = uneven().with_rewards(rewards)
    # Least squares: 4.5 - 0.15 s, advantages -1.5, 3, -1.5.
    p = probabilities(data, Weighting("advantage", weighting_alpha=1.0), ROWS)
    w = np.array([1, 1, np.e, np.e, np.e, 1])
    np.testing.assert_allclose(p, w / w.sum(), rtol=1e-9)


def test_the_best_share_is_drawn_uniformly():
    p = probabilities(uneven(), Weighting("top", weighting_share=0.67), ROWS)
    np.testing.assert_allclose(p, [0, 0, 0.25, 0.25, 0.25, 0.25])
    for share in (0.01, 0.66):  # one episode at least, and of 1.98 the whole ones
        assert probabilities(uneven(), Weighting("top", weighting_share=share), ROWS)[5] == 1


def test_weights_of_rows_without_a_next_state_go_to_the_others():
    """Each row keeps the weight of its own episode, whichever rows are missing before it."""
    p = probabilities(uneven(), Weighting("return", weighting_alpha=0.5), np.array([0, 2, 4, 5]))
    w = np.exp(np.array([0, 0.5, 0.5, 1]) / 0.5)
    np.testing.assert_allclose(p, w / w.sum(), rtol=1e-12)


def test_without_weighting_there_are_no_probabilities():
    assert probabilities(uneven(), Preprocess(), ROWS) is None


def test_the_draws_have_the_probabilities():
    """A chi-square of a million draws, of two seeds, that agree with neither each other nor chance."""
    p = np.array([0.0, 0.5, 0.2, 0.0, 0.25, 0.05, 0.0])
    stream = seeding.indices([3, 5], len(p), 1000, probabilities=p)
    drawn = torch.stack([stream.next() for _ in range(500)], 1).flatten(1)
    for rows in drawn:
        counts = np.bincount(rows, minlength=len(p))
        assert not counts[p == 0].any()
        assert stats.chisquare(counts[p > 0], p[p > 0] * counts.sum()).pvalue > 1e-3
    assert (drawn[0] != drawn[1]).any()
    alone = seeding.indices([5], len(p), 1000, probabilities=p)
    assert (alone.next() == drawn[1:, :1000]).all()


def test_equal_probabilities_have_the_uniform_law():
    p = probabilities(uneven(), Weighting("return", weighting_alpha=1e12), ROWS)
    np.testing.assert_allclose(p, 1 / 6, rtol=1e-10)


def test_the_mean_return_of_a_draw_is_that_of_the_weights():
    data = random_dataset()
    p = probabilities(data, Weighting("return"), np.arange(len(data)))
    returns = np.repeat(data.episode_returns(), data.episode_lengths())
    buffer = OfflineBuffer(data.transitions(), [0], 100_000, labels=returns, probabilities=p)
    _, labels = buffer.sample_labelled()
    assert float(labels.mean()) == pytest.approx(p @ returns, rel=0.02)
    assert p @ returns > returns.mean() + returns.std()


def test_windows_start_at_weighted_rows():
    data = uneven()
    buffer = SequenceBuffer(
        *(data.observations, data.actions, data.returns_to_go(), data.episode_ends),
        *([0], 64, 2),
        filler=(np.zeros(1), np.zeros(1)),
        probabilities=np.array([0, 0, 1.0, 0, 0, 0]),
    )
    windows = buffer.sample()
    assert (windows.observations[..., 0] == torch.tensor([10.0, 11.0])).all()


def test_weighted_streams_go_on_where_they_stopped():
    p = np.array([0.3, 0.7])
    one = seeding.indices([0], 2, 4, probabilities=p)
    for _ in range(300):
        one.next()
    other = seeding.indices([0], 2, 4, probabilities=p)
    other.load_state_dict(one.state_dict())
    assert (one.next() == other.next()).all()


# --------------------------------------------------------------------------- names of runs, refusals

NAMES = {
    iql: "bc9ec2c7",
    cql: "a8e7b156",
    bc: "88e2af2e",
    dt: "05cbc076",
    cql_discrete: "2db1eb3e",
}


@pytest.mark.parametrize("algo", NAMES, ids=lambda a: a.__name__.split(".")[-1])
def test_runs_without_weighting_keep_their_names(algo):
    cfg = Config(algo=algo.Config(), task="d4rl/hopper-medium-v2")
    assert config_hash(cfg) == NAMES[algo]
    weighted = replace(cfg.algo, data=replace(cfg.algo.data, weighting="return"))
    assert config_hash(replace(cfg, algo=weighted)) != NAMES[algo]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"weighting": "best"}, "weighting"),
        ({"weighting_alpha": 0.0}, "weighting_alpha=0.0"),
        ({"weighting_share": 1.5}, "weighting_share"),
    ],
)
def test_bad_settings_are_refused(settings, problem):
    for kind in (Preprocess, Weighting):
        with refused(problem):
            kind(**settings)


def test_equal_episodes_and_hidden_rewards_are_refused():
    with refused("episodes"):
        probabilities(uneven().with_rewards(np.zeros(6)), Weighting("return"), ROWS)
    with refused("comparisons"):
        weighting.refuse(Weighting("return"), "the rewards are learned from comparisons")


def test_every_offline_algorithm_takes_a_weighting(tmp_path, capfd):
    """Through its own train, which says from how many rows it draws."""
    for name in ("iql", "cql", "td3_bc", "bc"):
        cfg = config(tmp_path / name, name, steps=6)
        cfg.algo.data.weighting = "top"
        train(cfg)
    own = {"quantiles": 4}
    cell = config(tmp_path / "n", "cql_discrete", own=own, task="corerl/cartpole", steps=6)
    cell.algo.data.weighting = "return"
    train(cell)
    windows = config(tmp_path / "dt", "bc", steps=6)
    own = {"width": 8, "layers": 1, "batch_size": 4, "context": 3, "data": Weighting("top")}
    train(replace(windows, algo=dt.Config(**own)))
    assert capfd.readouterr().err.count("corerl: with algo.data.weighting=") == 6


# ------------------------------------------------------------------------------ reward shifting


def test_a_shift_of_rewards_is_an_initial_value():
    """Q-learning on a continuing task with rewards + c from Q = 0 is, at every step and up to the
    constant c / (1 - g), Q-learning without the shift from Q = -c / (1 - g)."""
    rng = np.random.default_rng(0)
    shift, discount = -2.0, 0.9
    rows = [(rng.integers(4), rng.integers(2), rng.normal(), rng.integers(4)) for _ in range(500)]
    data = random_dataset()
    scaled = preprocessing.preprocessed_rewards(data, Preprocess(reward_shift=shift))
    np.testing.assert_allclose(scaled, data.rewards + shift, rtol=1e-6)
    constant = shift / (1 - discount)
    shifted, plain = np.zeros((4, 2)), np.full((4, 2), -constant)
    for s, a, r, following in rows:
        shifted[s, a] += 0.1 * (r + shift + discount * shifted[following].max() - shifted[s, a])
        plain[s, a] += 0.1 * (r + discount * plain[following].max() - plain[s, a])
        np.testing.assert_allclose(shifted - constant, plain, atol=1e-10)


def test_the_pendulum_mixture_is_what_its_name_says():
    arrays = pendulum.make_mixture(seed=0)
    good = arrays["controller"] == 2
    assert good.mean() == pytest.approx(0.05, abs=0.001)
    returns = arrays["rewards"].reshape(-1, 200).sum(1)
    assert returns[good].mean() > returns[~good].mean() + 500
    assert resolve("corerl/pendulum-random-good-05").has_data
