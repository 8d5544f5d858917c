"""General preference models: scores, cycles that no reward fits, the model's updates, and SPO on it."""

import json
import math
from itertools import permutations

import numpy as np
import pytest
import torch
from agreement import assert_networks, net, scramble
from scipy.linalg import schur
from small import run, state_of
from torch.nn import functional as F
from wording import refused

from corerl.algos import spo
from corerl.config import Config, Eval
from corerl.data.tasks import resolve
from corerl.envs.three_corners import PREFERENCES, STEPS, corner, move
from corerl.nn.learner import Spec
from corerl.preferences.general import General, PreferenceModel, score
from corerl.preferences.self_play import minimax_winner

CYCLE = [(0, 1), (1, 2), (2, 0)]
L, QUEUE = 3, 4


def model_of(seeds=(0, 7), **own) -> PreferenceModel:
    small = {"dimension": 4, "hidden_layers": 1, "hidden_width": 8, "budget": 6, "batch_size": 5}
    return PreferenceModel(General(**(small | own)), Spec(2, 1, seeds, identities=seeds), L, QUEUE)


# The score.


def test_a_score_by_hand_and_turned_round():
    """(1, 2, 3, 4) against (5, 6, 7, 8): 6 - 10 + 24 - 28."""
    one, other = torch.tensor([1.0, 2, 3, 4]), torch.tensor([5.0, 6, 7, 8])
    assert score(one, other).item() == -8.0 and score(other, one).item() == 8.0
    assert score(one, one).item() == 0.0


def test_one_dimension_is_bradley_terry_and_so_are_two_with_a_one():
    u = torch.randn(6, 1)
    with_one = torch.cat([u, torch.ones(6, 1)], 1)
    found = score(with_one[:, None], with_one)
    torch.testing.assert_close(found, u - u.T)
    torch.testing.assert_close(found, score(u[:, None], u))


def test_four_dimensions_write_any_preferences_of_five(float64):
    """The real Schur form of an antisymmetric matrix has blocks of two."""
    drawn = np.random.default_rng(0).normal(size=(5, 5))
    skew = drawn - drawn.T
    form, basis = schur(skew, output="real")
    vectors, i = [], 0
    while i < 4:
        weight = form[i, i + 1]
        if abs(weight) > 1e-9:
            pair = basis[:, i], np.sign(weight) * basis[:, i + 1]
            vectors += [abs(weight) ** 0.5 * x for x in pair]
        i += 2 if abs(weight) > 1e-9 else 1
    vectors = torch.tensor(np.array(vectors).T)
    assert vectors.shape == (5, 4)
    torch.testing.assert_close(score(vectors[:, None], vectors), torch.tensor(skew))


@pytest.mark.parametrize(("dimension", "expected"), [(1, math.log(2)), (2, 0.500402)])
def test_a_cycle_costs_a_reward_log_two_and_a_general_score_its_entropy(
    dimension, expected, float64
):
    """Rock, paper, scissors with 0.8; the minimax winner of what was fitted is a third of each."""
    torch.manual_seed(0)
    vectors = torch.randn(3, dimension, requires_grad=True)
    adam = torch.optim.Adam([vectors], 0.05)
    for _ in range(1_500):
        logits = torch.stack([score(vectors[a], vectors[b]) for a, b in CYCLE])
        loss = (F.softplus(logits) - 0.8 * logits).mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
    assert loss.item() == pytest.approx(expected, abs=1e-6)
    chances = torch.sigmoid(score(vectors[:, None], vectors)).detach().numpy()
    np.testing.assert_allclose(chances[0, 1], 0.8 if dimension == 2 else 0.5, atol=1e-3)
    if dimension == 2:
        np.testing.assert_allclose(minimax_winner(chances), np.ones(3) / 3, atol=1e-3)


# The model.


def answered(model: PreferenceModel, count: int = 6) -> list:
    """Answers of both seeds about episodes of one to three steps."""
    rng, kept = np.random.default_rng(1), []
    for i in range(2):
        for number in range(count):
            pair = [torch.tensor(rng.normal(size=(rng.integers(1, L + 1), 3))) for _ in range(2)]
            model.keep(i, *pair, float(number % 2))
            kept.append((i, *pair, float(number % 2)))
    return kept


@pytest.mark.parametrize("normalize", [False, True])
def test_five_updates_equal_the_equations(normalize, float64):
    """-log sigmoid of the winner's score, of vectors that are means over steps; the last step stays."""
    model = model_of(normalize=normalize, temperature=0.5)
    scramble(model.network)
    kept, uniforms = answered(model), model_of().uniforms
    theirs = [
        {k: torch.tensor(v, requires_grad=True) for k, v in net(model.network, s).items()}
        for s in range(2)
    ]
    adams = [torch.optim.Adam(p.values(), lr=model.cfg.lr) for p in theirs]
    for _ in range(5):
        drawn, metrics = uniforms.next(), model.update()
        for s, p in enumerate(theirs):
            own, terms = [x[1:] for x in kept if x[0] == s], []
            for u in drawn[s]:
                *pair, label = own[int(u * len(own))]
                v = []
                for episode in pair:
                    steps = [episode[min(t, len(episode) - 1)] for t in range(L)]
                    mean = sum(network(p, step) for step in steps) / L
                    v.append(mean / mean.norm() if normalize else mean)
                winner, loser = (v[1], v[0]) if label == 1 else (v[0], v[1])
                s_of = winner[0] * loser[1] - winner[1] * loser[0]
                s_of = s_of + winner[2] * loser[3] - winner[3] * loser[2]
                terms.append(-torch.log(1 / (1 + torch.exp(-s_of / 0.5))))
            loss = sum(terms) / len(terms)
            assert metrics["model_loss"][s].item() == pytest.approx(loss.item(), rel=1e-9)
            adams[s].zero_grad()
            loss.backward()
            adams[s].step()
    for s, p in enumerate(theirs):
        assert_networks(net(model.network, s), {k: v.detach().numpy() for k, v in p.items()}, 1e-8)


def network(p: dict, step: torch.Tensor) -> torch.Tensor:
    hidden = torch.relu(step[None] @ p["layers.0.weight"] + p["layers.0.bias"])
    return (hidden @ p["layers.1.weight"] + p["layers.1.bias"])[0]


def test_wins_are_over_todays_queue_of_the_same_seed():
    """Scores are differences of a sum; seed 0's queue holds the latest four of five."""
    model = model_of(dimension=1, hidden_layers=0)
    with torch.no_grad():
        model.network.layers[0].weight.fill_(1.0)
        model.network.layers[0].bias.zero_()
    episode = lambda value: torch.full((1, 3), value / 3)  # noqa: E731
    assert model.join(0, episode(9.0)) == 0.5  # nothing to be compared with
    won = [model.join(0, episode(value)) for value in (1.0, 2.0, 3.0, 4.0)]
    assert won[0] == pytest.approx(1 / (1 + math.exp(8.0)))
    asked = episode(2.0).expand(2, 1, L, -1)
    expected = np.mean([1 / (1 + math.exp(value - 2.0)) for value in (1.0, 2.0, 3.0, 4.0)])
    torch.testing.assert_close(model.wins(asked)[:, 0], torch.tensor([expected, 0.5]).float())


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"dimension": 3}, "algo.model.dimension=3 even"),
        ({"dimension": 1, "normalize": True}, "algo.model.normalize=true algo.model.dimension=1"),
        ({"budget": 0}, "algo.model.budget=0"),
        ({"temperature": 0.0}, "algo.model.temperature=0.0"),
    ],
)
def test_settings_that_make_no_model_raise_an_error(own, words):
    with refused(words):
        General(**own)


# The task.


def test_three_corners_are_rock_paper_scissors():
    np.testing.assert_array_equal(PREFERENCES + PREFERENCES.T, 1.0)
    winner = minimax_winner(PREFERENCES)
    np.testing.assert_allclose(winner, [1 / 3, 1 / 3, 1 / 3, 0], atol=1e-9)
    env, found = resolve("risk/three-corners").make_env(), []
    for direction in ([1, 0], [-0.5, 1], [-0.5, -1], [0, 0.1]):
        seen, rows = env.reset(seed=0)[0], []
        for number in range(STEPS):
            rows.append(seen)
            seen, reward, over, cut, info = env.step(np.array(direction, np.float32))
            assert (reward, over, cut) == (0.0, number == STEPS - 1, False)
        actions = np.array([direction] * STEPS, np.float32)
        found.append(env.summary(np.array(rows), actions, np.zeros(STEPS)))
        assert found[-1] == info["corner"]
    assert [int(x[0]) for x in found] == [0, 1, 2, 3]
    chances = [env.prefers(a, b) for a, b in permutations(found, 2)]
    expected = [PREFERENCES[a, b] for a, b in permutations(range(4), 2)]
    assert chances == expected


def test_a_general_model_learns_who_beats_whom_and_a_reward_only_that_the_middle_loses():
    """1,000 answers about random episodes of the plane; each model answers 2,000 others."""
    rng = np.random.default_rng(0)

    def episodes(count: int) -> tuple[torch.Tensor, np.ndarray]:
        actions = rng.uniform(-1, 1, (count, STEPS, 2))
        ends = 0.1 * actions.cumsum(1)
        begins = np.concatenate([np.zeros((count, 1, 2)), ends[:, :-1]], 1)
        np.testing.assert_allclose(move(begins[:, -1], actions[:, -1]), ends[:, -1])
        return torch.tensor(np.concatenate([begins, actions], -1)).float(), corner(ends[:, -1])

    right = {}
    for dimension in (1, 4):
        own = {"normalize": True, "temperature": 0.2} if dimension > 1 else {}
        cfg = General(dimension=dimension, budget=1_000, batch_size=128, lr=3e-3, **own)
        model = PreferenceModel(cfg, Spec(2, 2, [0], identities=[0]), STEPS, QUEUE)
        pairs, ends = zip(*(episodes(1_000) for _ in range(2)), strict=True)
        for first, second, a, b in zip(*pairs, *ends, strict=True):
            model.keep(0, first, second, float(rng.random() < PREFERENCES[b, a]))
        for _ in range(600):
            model.update()
        pairs, ends = zip(*(episodes(2_000) for _ in range(2)), strict=True)
        vectors = [model.vectors(x[None])[0] for x in pairs]
        first_wins = (score(*vectors) > 0).numpy() == (PREFERENCES[ends[0], ends[1]] > 0.5)
        of_corners = (ends[0] != ends[1]) & (ends[0] < 3) & (ends[1] < 3)
        of_middle = (ends[0] == 3) != (ends[1] == 3)
        right[dimension] = first_wins[of_corners].mean(), first_wins[of_middle].mean()
    assert right[4][0] > 0.75 and right[4][1] > 0.75
    assert right[1][0] < 0.65 and right[1][1] > 0.75


# Runs.


def job(root, **own) -> Config:
    model = General(dimension=2, budget=5, hidden_layers=1, hidden_width=8, batch_size=4)
    small = {"random_steps": 20, "batch_size": 8, "hidden_width": 8, "queue": 3, "model": model}
    algo = spo.Config(**(small | {"teacher": "environment"} | own))
    often = {"log_every": 5, "save_every": 5, "save_minutes": 0, "root": str(root)}
    cell = {"task": "risk/three-corners", "steps": 60, "eval": Eval(every=60, episodes=1)}
    return Config(algo=algo, compile="off", **often, **cell)


def test_rewards_are_the_models_wins_over_the_steps(tmp_path):
    folder = run(job(tmp_path))
    state = state_of(folder)
    assert state["model"]["answers"]["count"].tolist() == [5, 5]  # the budget, of eleven episodes
    assert state["replay"]["last"][0].tolist() == [4] * 5 + [9] * 5 + list(
        np.repeat(range(14, 60, 5), 5)
    )
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert {"won", "model_loss", "model_accuracy"} <= set(lines[-1])
    assert all(0 < line["won"] < 1 for line in lines)
