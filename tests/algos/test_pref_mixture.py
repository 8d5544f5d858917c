"""Mixtures of rewards and the max-min policy: EM against a transcription, both solvers, the trap, runs."""

import numpy as np
import pytest
from scipy.optimize import minimize
from small import random_dataset, run
from wording import refused, says

from corerl.algos import pref_mixture as pm
from corerl.cli import main
from corerl.config import Config
from corerl.data import tasks
from corerl.envs.two_groups import TwoGroupsEnv
from corerl.preferences import groups, label_session
from corerl.preferences.label_session import Session
from corerl.risk.finite_mdp import FiniteMDP

ENV = TwoGroupsEnv()


def learner(seed: int = 0, **own) -> pm.MaxMin:
    return pm.MaxMin(pm.Config(**own), ENV, np.random.default_rng(seed))


def two_kinds(seed: int = 0, labellers: int = 40, each: int = 100):
    """Labellers of opposite rewards in three features, 24 of one kind."""
    rng = np.random.default_rng(seed)
    theta = np.array([[2.0, -1.0, 0.5], [-2.0, 1.0, 0.5]])
    kinds = np.repeat([0, 1], [round(0.6 * labellers), labellers - round(0.6 * labellers)])
    who = np.repeat(np.arange(labellers), each)
    ranked = rng.standard_normal((len(who), 2, 3))
    utility = np.einsum("nkd,nd->nk", ranked, theta[kinds[who]])
    swap = rng.random(len(who)) > 1 / (1 + np.exp(utility[:, 1] - utility[:, 0]))
    ranked[swap] = ranked[swap][:, ::-1]
    return ranked, who, kinds, theta


def test_em_never_falls_and_finds_groups_and_rewards():
    ranked, who, kinds, theta = two_kinds()
    found = groups.mixture(ranked, who, 2, np.random.default_rng(0))
    assert (np.diff(found.likelihoods) >= -1e-6).all()
    assert pm.assigned(found.members, kinds) == 1.0
    order = np.argsort(-found.weights)
    np.testing.assert_allclose(found.weights[order], [0.6, 0.4], atol=1e-6)
    np.testing.assert_allclose(found.theta[order], theta, atol=0.25)


def test_a_round_is_the_transcription():
    """Posteriors by a product over answers, rewards by another optimiser."""
    ranked, who, _, _ = two_kinds(labellers=4, each=5)
    rng, members = np.random.default_rng(3), np.random.default_rng(3).dirichlet(np.ones(2), 4)
    found = groups._climb(ranked, who, 2, rng, 10.0, 1)
    gaps, theta = ranked[:, 0] - ranked[:, 1], []
    for u in range(2):
        loss = lambda x, u=u: (members[who, u] * np.log1p(np.exp(-gaps @ x))).sum()  # noqa: E731
        ball = {"type": "ineq", "fun": lambda x: 100.0 - x @ x}
        theta.append(minimize(loss, np.zeros(3), method="SLSQP", constraints=[ball]).x)
    np.testing.assert_allclose(found.theta, theta, rtol=2e-3, atol=2e-3)
    joint = members.mean(0) * np.array(
        [[np.prod(1 / (1 + np.exp(-gaps[who == h] @ t))) for t in found.theta] for h in range(4)]
    )
    np.testing.assert_allclose(found.members, joint / joint.sum(1, keepdims=True), rtol=1e-6)
    np.testing.assert_allclose(found.likelihoods[-1], np.log(joint.sum(1)).sum())


def test_held_out_answers_say_how_many_groups_there_are():
    ranked, who, _, _ = two_kinds(each=40)
    found = [groups.held_out(ranked, who, u, np.random.default_rng(0)) for u in (1, 2, 3)]
    assert found[1] > found[0] + 0.1 and found[2] < found[1] + groups.AS_GOOD


def test_questions_that_decide_by_hand():
    """Utilities differ by +-2: one question tells 2 (2 p - 1) nats, p the sigmoid of 2."""
    mixture = groups.Mixture(np.array([[2.0], [-2.0]]), np.ones(2) / 2, np.ones((1, 2)), ())
    ranked = np.tile([[[1.0], [0.0]]], (3, 1, 1))
    p = 1 / (1 + np.exp(-2))
    told = (2 * p - 1) * 2
    assert groups.questions_to_decide(mixture, ranked) == pytest.approx(np.log(99) / told)


def test_max_min_by_hand():
    """One state: an action for each of two groups, pays 1 and 3. Both get 3/4."""
    mdp = FiniteMDP.from_matrices(np.ones((1, 2, 1)), np.zeros((1, 2)), horizon=1)
    rewards = np.array([[[1.0, 0.0]], [[0.0, 3.0]]])
    visits, value = pm.max_min(mdp, rewards)
    assert value == pytest.approx(0.75)
    np.testing.assert_allclose(visits[0, 0], [0.75, 0.25])


@pytest.mark.parametrize("seed", range(3))
def test_the_program_and_multiplicative_weights_agree(seed):
    rng = np.random.default_rng(seed)
    moves, rewards = rng.dirichlet(np.ones(4), (4, 3)), rng.random((2, 4, 3))
    mdp = FiniteMDP.from_matrices(moves, rewards[0], horizon=5)
    visits, value = pm.max_min(mdp, rewards)
    assert pm.values(visits, rewards).min() == pytest.approx(value)
    average, played = pm.multiplicative(mdp, rewards, 0.1, 1_000)
    assert value - 0.01 < played <= value + 1e-9
    np.testing.assert_allclose(pm.values(average, rewards).min(), played)


def test_the_mean_reward_leaves_the_minority_almost_nothing_and_max_min_does_not():
    best = pm.max_min(ENV.mdp, ENV.group_rewards)[1]
    assert best == pytest.approx(3.7)
    worst = {}
    for policy, count in (("max_min", 2), ("multiplicative", 2), ("mean", 2), ("max_min", 1)):
        agent = learner(policy=policy, groups=count, iterations=200)
        found = [agent.episode() for _ in range(2)]
        worst[policy, count] = np.mean([n["worst"] for n in found])
        assert count == 1 or min(n["assigned"] for n in found) == 1.0
    assert worst["mean", 2] == worst["max_min", 1] == pytest.approx(0.2)
    assert worst["max_min", 2] > 3.3 and worst["multiplicative", 2] > 3.3


def test_the_answers_of_a_labeller_are_those_of_its_group():
    ranked, who = learner(comparisons=50).answers()
    assert np.bincount(who).tolist() == [50] * 40
    wanted = np.array([x.ravel() for x in ENV.group_rewards])  # features are one-hot
    returns = np.einsum("nkd,nd->nk", ranked, wanted[ENV.groups[who]])
    other = np.einsum("nkd,nd->nk", ranked, wanted[1 - ENV.groups[who]])
    assert (returns[:, 0] > returns[:, 1]).mean() > 0.75 > 0.35 > (other[:, 0] > other[:, 1]).mean()


@pytest.mark.parametrize(
    ("labellers", "count", "words"),
    [([0, 0, 2], 1, "labeller 1"), ([0, 0, 0], 2, "2 1"), ([0, 0], 1, "labellers (2,) 3")],
)
def test_labels_that_do_not_fit_raise_an_error(labellers, count, words):
    with refused(words):
        groups.mixture(np.ones((3, 2, 1)), np.array(labellers), count, np.random.default_rng(0))


def test_too_few_answers_to_hold_some_out_raise_an_error():
    with refused("five answers"):
        groups.held_out(np.ones((8, 2, 1)), np.repeat([0, 1], 4), 1, np.random.default_rng(0))


def test_a_task_without_groups_raises_an_error(tmp_path):
    with refused("risk/low-rank has no groups of labellers. group_rewards risk/two-groups"):
        run(Config(algo=pm.Config(), task="risk/low-rank", steps=2, root=str(tmp_path)))


def test_the_command_groups_label_files(tmp_path, capsys, monkeypatch):
    """Four people judge by the first feature, two of them the other way round."""
    data = random_dataset(300)
    monkeypatch.setattr(tasks.Task, "load", lambda self: data)
    paths = []
    for number, name in enumerate(("anna", "ben", "cleo", "dan")):
        asked = Session(data, tmp_path / f"{name}.npz", 60, 8, 0, name)
        for pair, starts in enumerate(asked.pairs):
            sums = [data.observations[s : s + 8, 0].sum() for s in starts]
            asked.answer(pair, float((sums[1] > sums[0]) == (number < 2)))
        paths.append(str(asked.path))
    assert main(["label", "corerl/pendulum", "--groups", *paths]) == 0
    shown = capsys.readouterr().out
    says(shown, "240 4 2 (taken)")
    lines = [line for line in shown.splitlines() if line.startswith("group ")]
    together = {
        frozenset(w for w in line.split() if w.isalpha() and w != "group") for line in lines
    }
    assert together == {frozenset({"anna", "ben"}), frozenset({"cleo", "dan"})}
    silent = label_session.read(tmp_path / "anna.npz")
    with refused("nobody"):
        groups.segments_of(
            {"nobody": silent | {"starts": silent["starts"][:0], "labels": silent["labels"][:0]}},
            data,
        )
