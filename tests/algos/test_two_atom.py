"""Two-atom dynamic programming: a transcription on random processes, nature's program, ties, runs."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
from scipy import optimize
from wording import refused

from corerl.algos import two_atom
from corerl.config import Config, Eval
from corerl.envs import mdps, textbook_mdps
from corerl.envs.low_rank import LowRankEnv
from corerl.risk import measures
from corerl.risk.finite_mdp import FiniteMDP, markov, return_law
from corerl.training.run import Run


def tails(x, p, tau: float) -> tuple[float, float]:
    """The means below and above the quantile, atom by atom."""
    low, left = 0.0, tau
    for value, mass in sorted(zip(x, p, strict=True)):
        taken = min(mass, left)
        low, left = low + taken * value, left - taken
    return low / tau, (np.dot(x, p) - low) / (1 - tau)


def process(rng) -> FiniteMDP:
    """Three states, one action, rewards by state and next state."""
    kernel, rewards = rng.dirichlet(np.ones(3), (3, 1)), rng.uniform(size=(3, 1, 3))
    return FiniteMDP.from_matrices(kernel, rewards, horizon=5, discount=0.9)


@pytest.mark.parametrize("seed", range(40))
def test_atoms_of_a_process_are_the_transcription(seed):
    """Five steps; and with them the mean, the exact distribution, and where the low atom lies between."""
    rng = np.random.default_rng(seed)
    mdp, tau = process(rng), float(rng.choice([0.1, 0.25, 0.5]))
    kernel, rewards = mdp.probabilities[:, 0], mdp.rewards[:, 0]
    atoms, value, law = [(0.0, 0.0)] * 3, np.zeros(3), [{0.0: 1.0}] * 3
    for _ in range(5):
        after, spread = [], []
        for s in range(3):
            x = [rewards[s, t] + 0.9 * atom for t in range(3) for atom in atoms[t]]
            p = [kernel[s, t] * mass for t in range(3) for mass in (tau, 1 - tau)]
            after.append(tails(x, p, tau))
            found = {}
            for t in range(3):
                for y, q in law[t].items():
                    total = rewards[s, t] + 0.9 * y
                    found[total] = found.get(total, 0.0) + kernel[s, t] * q
            spread.append(found)
        atoms, law = after, spread
        value = (kernel * (rewards + 0.9 * value)).sum(1)
    theta = two_atom.evaluate(mdp, np.ones((5, 3, 1)), tau)
    np.testing.assert_allclose(theta[0, :3], atoms, atol=1e-12)
    low, high = theta[0, :3].T
    np.testing.assert_allclose(tau * low + (1 - tau) * high, value, atol=1e-12)
    static = [tails(list(one), list(one.values()), tau)[0] for one in law]
    assert (static <= low + 1e-12).all() and (low <= value + 1e-12).all()
    exact = return_law(dataclasses.replace(mdp, start=np.eye(3)[1]), markov(np.zeros(3, int)))[0]
    assert exact.cvar(tau) == pytest.approx(static[1], abs=1e-9)
    np.testing.assert_allclose(two_atom.tail_means(exact, tau)[0], static[1], atol=1e-9)


def test_the_low_atom_is_natures_linear_program():
    """Nature reweights the pairs (s', atom) by at most 1 / tau."""
    rng = np.random.default_rng(0)
    mdp, tau = process(rng), 0.25
    theta = two_atom.evaluate(mdp, np.ones((5, 3, 1)), tau)
    values, mass = two_atom.one_step(mdp, theta[1], tau)
    for s in range(3):
        bounds = [(0, q / tau) for q in mass[s, 0]]
        worst = optimize.linprog(values[s, 0], A_eq=np.ones((1, 6)), b_eq=[1], bounds=bounds).fun
        assert theta[0, s, 0] == pytest.approx(worst, abs=1e-9)


def test_a_sure_half_and_a_coin_at_a_quarter():
    atoms = two_atom.split(np.array([[0.5, 0.5], [0.0, 1.0]]), np.full((2, 2), 0.5), 0.25)
    np.testing.assert_allclose(atoms, [[0.5, 0.5], [0.0, 2 / 3]])
    for objective, action, low in (("safe", 0, 0.5), ("risky", 1, 0.0), ("mean", 0, 0.5)):
        one = dataclasses.replace(mdps.coins(), horizon=1)
        theta, table = two_atom.control(one, 0.25, objective)
        assert (table[0, 0], theta[0, 0, 0]) == (action, low)


def tied(seed: int) -> FiniteMDP:
    """Every action of both states pays 1 on average. The scatter depends on the action and the outcome."""
    rng = np.random.default_rng(seed)
    p, rewards = rng.dirichlet(np.ones(3), (2, 2)), rng.normal(size=(2, 2, 3))
    rewards += 1 - (p * rewards).sum(-1, keepdims=True)
    return FiniteMDP(p, rewards, rng.integers(2, size=(2, 2, 3)), start=[0.3, 0.7], horizon=2)


@pytest.mark.parametrize("seed", range(5))
def test_safe_and_risky_are_the_extremes_of_all_policies_with_the_largest_mean(seed):
    mdp, tau = tied(seed), 0.3
    mean = two_atom.control(mdp, tau, "mean")[0]
    lows, highs = [], []
    for actions in itertools.product(range(2), repeat=4):
        theta = two_atom.evaluate(mdp, np.eye(2)[np.reshape(actions, (2, 2))], tau)
        if np.allclose(theta @ [tau, 1 - tau], mean @ [tau, 1 - tau], atol=1e-9):
            lows.append(theta[0, :2, 0])
            highs.append(theta[0, :2, 1])
    safe, risky = (two_atom.control(mdp, tau, one)[0][0, :2] for one in ("safe", "risky"))
    assert len(lows) > 1 and np.ptp(lows, axis=0).max() > 0.01
    np.testing.assert_allclose(safe[:, 0], np.max(lows, 0), atol=1e-9)
    np.testing.assert_allclose(risky[:, 1], np.max(highs, 0), atol=1e-9)


@pytest.mark.parametrize("tau", [0.1, 0.25, 0.5])
@pytest.mark.parametrize(
    "mdp",
    [
        *(mdps.lock_in(), mdps.wagers(), mdps.hazard(), mdps.coins(), LowRankEnv().mdp),
        textbook_mdps.machine(6),
    ],
    ids=["A", "B", "C", "coins", "low-rank", "machine"],
)
def test_bounds_on_every_small_problem(mdp, tau):
    for objective in ("safe", "risky", "mean"):
        cfg = two_atom.Config(objective=objective, tau=tau)
        atoms, solution = two_atom.solve(cfg, mdp)
        exact = two_atom.tail_means(solution.law, tau)
        assert solution.law.mean == pytest.approx(solution.value, abs=1e-8)
        assert exact[0] - 1e-9 <= atoms[0] <= solution.value + 1e-9 <= atoms[1] + 2e-9
        assert atoms[1] <= exact[1] + 1e-9
        assert exact[0] == pytest.approx(solution.law.cvar(tau))


def test_a_mixed_policy_mixes_the_distributions_of_its_actions():
    theta = two_atom.evaluate(
        dataclasses.replace(mdps.coins(), horizon=1), np.full((1, 1, 2), 0.5), 0.5
    )
    np.testing.assert_allclose(theta[0, 0], [0.25, 0.75])  # 0 with 1/4, 1/2 with 1/2, 1 with 1/4


def test_means_within_the_tie_are_equal():
    mdp = mdps.coins()
    rewards = mdp.rewards.copy()
    rewards[0, 1] += 1e-6  # the coin is a hair better
    mdp = dataclasses.replace(mdp, rewards=rewards)
    for tie, action in ((1e-9, 1), (1e-4, 0)):
        assert (two_atom.control(mdp, 0.25, "safe", tie)[1] == action).all()


def play(root, task: str, **own) -> Run:
    algo = two_atom.Config(**own)
    cfg = Config(algo=algo, task=task, steps=1, root=str(root), eval=Eval(episodes=400))
    run = Run(cfg, [0, 1], lambda *_: None)
    two_atom.train(algo, run)
    return run


def test_a_run_prints_the_atoms_and_plays_the_policy(tmp_path, capsys):
    run = play(tmp_path, "risk/coins", objective="risky")
    printed = capsys.readouterr().out
    assert "risky policy among those with the largest mean return, 2\n" in printed
    assert "two atoms at tau 0.25: low 1.259259259, high 2.24691358\n" in printed
    assert "exact distribution: low 0.75 (static CVaR), high 2.416666667" in printed
    solution = json.loads((run.directory / "solution.json").read_text())
    assert solution["returns"] == [0, 1, 2, 3, 4] and solution["exact_low"] == pytest.approx(0.75)
    assert solution["low"] == pytest.approx(1.2592592593) and solution["value"] == 2.0
    for line in map(json.loads, (run.directory / "returns.jsonl").read_text().splitlines()):
        assert measures.cvar(np.array(line["returns"]), 0.25) == pytest.approx(0.75, abs=0.25)


def test_a_task_without_a_finite_mdp_raises_an_error(tmp_path):
    with refused("risk/D1 MDP"):
        play(tmp_path, "risk/D1")
