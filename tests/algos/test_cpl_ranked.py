"""CPL on ranked segments against its transcription and by hand; the segments; the preference model."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import reference_pref
import reference_pref_transformer
import torch
from agreement import (
    SEEDS,
    WIDTH,
    A,
    O,
    as_tensor,
    assert_losses,
    assert_networks,
    generators,
    net,
    scramble,
    set_linear,
)
from reference_pref import make_keys, masks
from wording import refused

from corerl.algos.cpl_ranked import Config, PreferenceModel, RankedCPL, Score, teacher_scores
from corerl.data.dataset import Dataset
from corerl.nn.learner import Spec
from corerl.preferences.relabelling import Rows, rows_of
from corerl.preferences.segments import SegmentBuffer, Segments, first_rows, sums
from corerl.training.preprocessing import Preprocess

B, L = 4, 5


def make(**more) -> RankedCPL:
    settings = {"hidden_width": WIDTH, "lr": 1e-3, "dropout": 0.0}
    agent = RankedCPL(Config(**settings | more), Spec(O, A, generators()))
    scramble(agent.policy)
    return agent


def batches(count: int) -> list[Segments]:
    """Segments of 1 to 5 steps, other data for each seed; padding holds no zeros, which must not matter."""
    rng = np.random.default_rng(2)

    def batch() -> Segments:
        lengths = rng.integers(1, L + 1, (SEEDS, B, 1))
        observations = rng.normal(size=(SEEDS, B, L, O))
        actions = rng.uniform(-1.2, 1.2, (SEEDS, B, L, A)).clip(-1, 1)
        valid = 1.0 * (np.arange(L) < lengths)
        return Segments(
            *map(as_tensor, (observations, actions, valid, rng.normal(size=(SEEDS, B))))
        )

    return [batch() for _ in range(count)]


@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_four_updates_equal_the_equations(dropout, tolerance):
    agent = make(dropout=dropout)
    references = [reference_pref.RankedCPL(net(agent.policy, s), agent.cfg) for s in range(SEEDS)]
    for batch, keys in zip(batches(4), make_keys(4, 2), strict=True):
        keys = keys if dropout else None
        metrics = agent.update(batch, keys)
        for s, theirs in enumerate(references):
            keep = None if keys is None else masks(keys[s], B * L, dropout)
            losses = theirs.update(Segments(*(x[s].double().numpy() for x in batch)), keep)
            assert_losses(metrics, s, losses, tolerance)
    for s, theirs in enumerate(references):
        assert_networks(net(agent.policy, s), theirs.networks(), tolerance)


def still(**more) -> RankedCPL:
    """One seed whose policy is 0 everywhere."""
    agent = RankedCPL(Config(hidden_layers=0, **more), Spec(1, 1, generators(1)))
    set_linear(agent.policy, [[0.0]], [0.0])
    return agent


def ranked(actions, valid, scores) -> Segments:
    actions = torch.tensor([actions])[..., None]
    return Segments(0 * actions, actions, torch.tensor([valid]), torch.tensor([scores]))


def test_loss_by_hand():
    """(a/2)^2 is .25, .09, .01; means .17, .01, .25 over .5 are A = -.34, -.02, -.5, ranked as 2, 0, 1."""
    agent = still(temperature=0.5, bias=0.7)
    actions = [[1.0, 0.6], [0.2, 9.0], [-1.0, 1.0]]
    batch = ranked(actions, [[1.0, 1.0], [1.0, 0.0], [1.0, 1.0]], [5.0, 7.0, -1.0])
    loss, metrics = agent.loss(batch, None)

    def term(better, worse):
        return math.log(1 + math.exp(0.7 * worse - better))

    by_hand = (term(-0.34, -0.5) + term(-0.02, -0.5) + term(-0.02, -0.34)) / 3
    assert loss.item() == pytest.approx(by_hand, rel=1e-6)
    assert metrics["accuracy"].item() == 1
    assert metrics["log_prob"].item() == pytest.approx(-0.85 / 5)  # of the five steps, not padding


def test_the_least_preferred_are_repelled_only_as_far_as_the_bias_goes():
    """At b = 1 and equal advantages both pull alike; at b < 1 the better one pulls more."""
    for bias, towards in ((1.0, 0.0), (0.5, 1.0)):
        agent = still(temperature=0.5, bias=bias)
        agent.policy.requires_grad_(True)
        loss, _ = agent.loss(ranked([[0.8], [0.8]], [[1.0], [1.0]], [0.0, 1.0]), None)
        (gradient,) = torch.autograd.grad(loss.sum(), [agent.policy.layers[0].bias])
        assert (-gradient.sum() > 1e-3) == bool(towards)


ROWS = Rows(
    np.arange(16, dtype=np.float32).reshape(8, 2) + 1,
    -np.arange(8, dtype=np.float32)[:, None] - 1,
    np.zeros(8, bool),
    np.array([1, 6, 8]),
)


def test_a_segment_ends_at_every_row_and_none_crosses_an_episode():
    assert first_rows(ROWS, 3).tolist() == [0, 1, 1, 1, 2, 3, 6, 6]
    buffer = SegmentBuffer(ROWS, [0], 4, 3)
    taken = buffer.take(torch.tensor([[0, 2, 5, 7]]))
    assert taken.actions[0, ..., 0].tolist() == [[-1, 0, 0], [-2, -3, 0], [-4, -5, -6], [-7, -8, 0]]
    assert (taken.valid[0] == (taken.actions[0, ..., 0] != 0)).all()
    assert (taken.observations[0, 2] == torch.from_numpy(ROWS.observations[3:6])).all()
    assert (taken.observations[0][taken.valid[0] == 0] == 0).all()
    values = np.array([1.0, 2, 4, 8, 16, 32, 64, 128])
    assert sums(values, first_rows(ROWS, 3)).tolist() == [1, 2, 6, 14, 28, 56, 64, 192]


def test_a_batch_has_its_segments_scores_and_seeds_their_own():
    buffer = SegmentBuffer(ROWS, [0, 1], 64, 3)
    buffer.scores.copy_(torch.stack([torch.arange(8.0), 10 * torch.arange(8.0)]))
    batch = buffer.sample()
    last = batch.valid.sum(-1).long() - 1
    rows = -batch.actions[..., 0].gather(2, last[..., None])[..., 0] - 1
    assert (batch.scores == rows * torch.tensor([[1.0], [10.0]])).all()
    assert set(rows[0].tolist()) == set(range(8)) and (rows[0] != rows[1]).any()


def model(**more) -> PreferenceModel:
    tiny = {"steps": 8, "heads": 2, "layers": 2, "width": 8, "dropout": 0.0, "lr": 1e-2}
    made = PreferenceModel(Score(**tiny | more), Spec(O, A, generators()), L)
    scramble(made.network)
    return made


def test_scores_equal_the_equations(tolerance):
    """Attention goes both ways, never to padding, whose own tokens count in the mean."""
    made, batch = model(), batches(1)[0]
    batch = batch._replace(
        observations=batch.observations * batch.valid[..., None],
        actions=batch.actions * batch.valid[..., None],
    )
    found = made(batch.observations, batch.actions, batch.valid)
    for s in range(SEEDS):
        parameters = {k: torch.from_numpy(v) for k, v in net(made.network, s).items()}
        for i in range(B):
            parts = [x[s, i].double() for x in (batch.observations, batch.actions)]
            h = reference_pref_transformer.hidden(
                parameters, *parts, batch.valid[s, i].tolist(), 2, 2, lambda _, x, head=0: x, False
            )
            expected = reference_pref_transformer.score(parameters, h).item()
            assert found[s, i].item() == pytest.approx(expected, rel=tolerance, abs=tolerance)


def test_every_segment_of_a_buffer_is_scored():
    made = PreferenceModel(Score(width=8, heads=2), Spec(2, 1, generators()), 3)
    buffer = SegmentBuffer(ROWS, [0, 1], 4, 3)
    every = buffer.take(torch.arange(8)[None])
    together = made(every.observations, every.actions, every.valid)
    torch.testing.assert_close(made.scores(buffer, piece=3), together.detach())


def test_a_teacher_scores_a_step_that_ends_an_episode_by_its_reward():
    """Its next state was not recorded, and it makes a transition all the same."""
    cut = np.array([0, 1, 0, 1], bool)
    data = Dataset.from_arrays(np.zeros((4, 2)), np.zeros((4, 1)), np.arange(4.0), truncated=cut)
    cfg = Config(ranked_by="teacher", length=2, data=Preprocess(end_reward=1.0))
    run = SimpleNamespace(dataset=lambda: data, cfg=SimpleNamespace(algo=cfg))
    scores = teacher_scores(run, cfg, rows_of(data.ended_by(cfg.data.end_reward)))
    assert scores.tolist() == [0, 1, 2]


def test_a_policy_learns_to_act_as_in_the_segments_that_score_more():
    """Actions uniform on [-1, 1]; scores prefer those near 0.6 s."""
    rng = np.random.default_rng(0)
    s, a = (rng.uniform(-1, 1, (4_000, 1)).astype(np.float32) for _ in range(2))
    rows = Rows(s, a, np.zeros(4_000, bool), np.arange(4, 4_001, 4))
    buffer = SegmentBuffer(rows, [0], 32, 4)
    scores = -sums((a - 0.6 * s)[:, 0] ** 2, buffer.starts) / (np.arange(4_000) % 4 + 1)
    buffer.scores.copy_(torch.from_numpy(scores))
    cfg = Config(hidden_width=32, lr=2e-3, dropout=0.0, bias=0.5)
    agent = RankedCPL(cfg, Spec(1, 1, generators(1)))
    for _ in range(300):
        agent.update(buffer.sample())
    states = torch.linspace(-1, 1, 21)[None, :, None]
    slope = (agent.act(states) * 0.6 * states).sum() / (0.6 * states).square().sum()
    assert 0.5 < slope < 1.5


def test_a_width_that_heads_or_the_head_cannot_share_is_refused():
    with refused("algo.score.width=7"):
        Score(width=7, heads=7)
    with refused("algo.score.width=8"):
        Score(width=8, heads=3)
