"""Exact optima: a table made by rational arithmetic and quadrature, and enumeration of all policies."""

import csv
import dataclasses
import itertools
from collections import defaultdict
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats as scipy_stats
from wording import refused

from corerl.algos import cvar_tabular
from corerl.config import Config, Eval
from corerl.envs import mdps
from corerl.risk import solvers
from corerl.risk.finite_mdp import END, FiniteMDP
from corerl.risk.solvers import blind, ecrm, ecrm_of_states, iterated, naive
from corerl.risk.static_cvar import static
from corerl.training.run import Run
from corerl.training.tabular import TabularPlayer

ORACLE = list(csv.DictReader((Path(__file__).parent / "risk_oracle_values.csv").open()))
FINITE = {"A": mdps.lock_in(), "B": mdps.wagers(), "C": mdps.hazard()}
SOLVERS = {
    "static CVaR optimum": static,
    "best": blind,
    "iterated CVaR optimum": iterated,
    "naive": naive,
}


@pytest.mark.parametrize(
    "row",
    [r for r in ORACLE if r["mdp"] in FINITE],
    ids=lambda r: f"{r['mdp']}-{r['quantity'][:12]}-{r['tau']}",
)
def test_every_row_of_the_table(row):
    """Exact values to 1e-9, printed ones to their last digit."""
    solver = next(s for name, s in SOLVERS.items() if row["quantity"].startswith(name))
    found = solver(FINITE[row["mdp"]], float(row["tau"]))
    try:
        wanted, close = float(Fraction(row["value_exact"])), 1e-9
    except ValueError:
        wanted, close = (
            float(row["value_float"]),
            0.5 * 10.0 ** -len(row["value_float"].split(".")[1]),
        )
    assert found.value == pytest.approx(wanted, abs=close)


@pytest.mark.parametrize("row", [r for r in ORACLE if r["mdp"] == "D1"], ids=lambda r: r["tau"])
def test_the_best_gamble(row):
    a, value = mdps.gamble_optimum(float(row["tau"]))
    assert a == pytest.approx(float(row["value_float"]), abs=5e-7)
    assert value == pytest.approx(float(row["extra"].removeprefix("value ")), abs=5e-7)
    law = scipy_stats.norm(a - a**2 / 2, 0.5 * a)
    mean = law.expect(lambda x: x, ub=law.ppf(float(row["tau"])), conditional=True)
    assert mean == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize("row", [r for r in ORACLE if r["mdp"] == "D2"], ids=lambda r: r["tau"])
def test_two_gambles_on_a_grid(row):
    """The solver on 40 actions and 50 atoms is within 1e-3 of the quadrature of a continuous gamble."""
    tau = float(row["tau"])
    mdp = mdps.gamble_mdp(2, actions=40, atoms=50)
    found = static(mdp, tau, resolution=5e-3, budgets=np.arange(0.2, 1.1, 0.05))
    assert found.value == pytest.approx(float(row["value_float"]), abs=1e-3)
    assert found.value == pytest.approx(two_gambles(tau), abs=1e-3)
    assert found.law.cvar(tau) == pytest.approx(found.value, abs=1e-3)
    wanted = float(row["extra"].split()[-1])
    assert iterated(mdp, tau).value == pytest.approx(wanted, abs=3e-4)


def two_gambles(tau: float) -> float:
    """D2's optimum: the last step in closed form, the first by Gauss-Hermite quadrature."""
    a = np.linspace(0.01, 1, 100)
    mean, spread = a - a**2 / 2, 0.5 * a
    grid = np.linspace(-8, 8, 2001)
    z = (grid[:, None] - mean) / spread
    short = (grid[:, None] - mean) * scipy_stats.norm.cdf(z) + spread * scipy_stats.norm.pdf(z)
    least = np.minimum(short.min(1), np.maximum(grid, 0))
    xi, weight = np.polynomial.hermite_e.hermegauss(160)
    c = np.arange(0.2, 1.1, 0.02)[:, None, None]
    left = c - (mean[:, None] + spread[:, None] * xi)
    costs = np.interp(left, grid, least) @ weight / weight.sum()
    return (c[..., 0] - costs / tau).max()


def test_policies_of_the_table():
    """Two rows of the table say which policies they are."""
    half = static(FINITE["A"], 0.5)
    assert half.policy(1, 1, 0.0) == 1 and half.policy(1, 1, 4.0) == 0
    quarter = static(FINITE["B"], 0.25)
    assert quarter.budget == pytest.approx(8) and quarter.law.mean == pytest.approx(
        7.7162, abs=5e-5
    )
    np.testing.assert_allclose(quarter.law.values, [-15, -8, -1, 6, 8, 10], atol=1e-9)
    mass = [0.00032, 0.00512, 0.03072, 0.06144, 0.8, 0.1024]
    np.testing.assert_allclose(quarter.law.probabilities, mass, atol=1e-12)
    goes_on = [v.action for v in static(FINITE["C"], 0.75).visits]
    assert goes_on == [1] * 5 + [0]


# All policies of small MDPs, one by one.


def random_mdp(seed: int, steps: int = 3, discount: float = 0.9) -> FiniteMDP:
    """Two states, two actions, two outcomes, rewards without a pattern; some outcomes end."""
    rng = np.random.default_rng(seed)
    successors = rng.integers(-1, 2, (2, 2, 2))
    successors[0, 0] = [0, 1]
    return FiniteMDP(
        rng.dirichlet(np.ones(2), (2, 2)),
        rng.normal(size=(2, 2, 2)),
        successors,
        horizon=steps,
        discount=discount,
    )


def laws_of_all_policies(mdp: FiniteMDP):
    """The law {return: probability} of every policy of the history, from state 0."""

    def grow(t, state):
        """All laws of what is collected from here on: an action, then a policy for every outcome."""
        if state == END or t == mdp.horizon:
            return [((0.0, 1.0),)]
        laws = []
        for action in range(mdp.sizes[1]):
            outcomes = list(
                zip(
                    *(x[state, action] for x in (mdp.probabilities, mdp.rewards, mdp.successors)),
                    strict=True,
                )
            )
            for later in itertools.product(*(grow(t + 1, s) for _, _, s in outcomes)):
                atoms = [
                    (r + mdp.discount * g, p * q)
                    for (p, r, _), law in zip(outcomes, later, strict=True)
                    for g, q in law
                ]
                laws.append(tuple(atoms))
        return laws

    return grow(0, 0)


def cvar_of_atoms(atoms, tau: float) -> float:
    """Rockafellar and Uryasev's maximum, over the atoms."""
    return max(c - sum(p * max(0.0, c - x) for x, p in atoms) / tau for c, _ in atoms)


@pytest.mark.parametrize("tau", [0.1, 0.4, 0.8, 1.0])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_static_is_the_best_of_all_policies_of_the_history(seed, tau):
    mdp = random_mdp(seed)
    best = max(cvar_of_atoms(law, tau) for law in laws_of_all_policies(mdp))
    found = static(mdp, tau)
    assert found.value == pytest.approx(best, abs=1e-9)
    assert found.law.cvar(tau) == pytest.approx(best, abs=1e-9)
    assert blind(mdp, tau).value <= best + 1e-9
    assert iterated(mdp, tau).law.cvar(tau) <= best + 1e-9


def test_the_table_of_a_stock_is_not_enough_for_another_start():
    """A random first state: the objective is over the mixture, not the mean of the two optima."""
    mdp = FiniteMDP(
        [[[1.0, 0.0], [0.5, 0.5]]] * 2,
        [[[1, 1], [4, 0]], [[3, 3], [9, -1]]],
        np.full((2, 2, 2), END),
        start=[0.5, 0.5],
        horizon=1,
    )
    laws = []
    for a, b in itertools.product(range(2), repeat=2):
        atoms = defaultdict(float)
        for s, action in enumerate((a, b)):
            for p, r in zip(mdp.probabilities[s, action], mdp.rewards[s, action], strict=True):
                atoms[r] += 0.5 * p
        laws.append(list(atoms.items()))
    best = max(cvar_of_atoms(law, 0.6) for law in laws)
    assert static(mdp, 0.6).value == pytest.approx(best)


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_ecrm_of_states_is_the_best_of_all_policies(seed, weight):
    """F = E[r_1] + rho(r_2) + E[rho(r_3 | s_2)], the action at t chosen by s_t and what came before."""
    rng = np.random.default_rng(seed)
    kernel, rewards = rng.dirichlet(np.ones(2), (2, 2)), rng.normal(size=(2, 2))
    tau, best = 0.3, -np.inf

    def rho(values, mass):
        atoms = list(zip(values, mass, strict=True))
        return (1 - weight) * float(values @ mass) + weight * cvar_of_atoms(atoms, tau)

    for first, *second in itertools.product(range(2), repeat=3):
        total = rewards[0, first] + 0.9 * rho(rewards[range(2), second], kernel[0, first])
        for s, a in enumerate(second):
            third = max(
                rho(rewards[range(2), list(last)], kernel[s, a])
                for last in itertools.product(range(2), repeat=2)
            )
            total += 0.81 * kernel[0, first, s] * third
        best = max(best, total)
    mdp = FiniteMDP.from_matrices(kernel, rewards, horizon=3, discount=0.9)
    assert ecrm_of_states(mdp, tau, weight) == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize("solve", [iterated, ecrm, ecrm_of_states])
def test_a_random_first_state_is_averaged_over(solve):
    def value(*start: float) -> float:
        found = solve(dataclasses.replace(random_mdp(0), start=start), 0.3)
        return getattr(found, "value", found)

    one, other = value(1.0, 0.0), value(0.0, 1.0)
    assert value(0.25, 0.75) == pytest.approx(0.25 * one + 0.75 * other) != pytest.approx(one)


def test_the_iterated_value_of_the_best_table_is_the_optimum():
    best = iterated(mdp := dataclasses.replace(random_mdp(0), start=[0.25, 0.75]), 0.3)
    table = np.array([[best.policy(t, s, 0.0) for s in range(2)] for t in range(3)])
    assert solvers.iterated_value(mdp, table, 0.3) == pytest.approx(best.value)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_an_ended_episode_is_a_state_that_pays_nothing_to_ecrm_of_states(seed):
    mdp = random_mdp(seed)

    def pad(x: np.ndarray, value: float) -> np.ndarray:
        return np.pad(x, ((0, 1), (0, 0), (0, 0)), constant_values=value)

    successors = pad(np.where(mdp.successors == END, 2, mdp.successors), 2)
    going_on = FiniteMDP(
        pad(mdp.probabilities, 0.5), pad(mdp.rewards, 0.0), successors, horizon=3, discount=0.9
    )
    assert (mdp.successors == END).any()
    assert ecrm_of_states(mdp, 0.3, 0.7) == pytest.approx(ecrm_of_states(going_on, 0.3, 0.7))


@pytest.mark.parametrize(("tau", "value"), [(0.5, 9.5), (0.25, 5.0)])
def test_ecrm_of_five_wagers(tau, value):
    """5 max_a (E + CVaR) / 2: the gamble's are 2.6 and 1.2 at tau 0.5, holding pays 1."""
    assert ecrm(FINITE["B"], tau, 0.5).value == pytest.approx(value)
    for one in (0.25, 0.5, 0.75):
        assert ecrm(FINITE["B"], one).value == pytest.approx(iterated(FINITE["B"], one).value)


@pytest.mark.parametrize("solver", [static, iterated, ecrm, naive, blind])
def test_of_actions_that_tie_the_first_is_taken(solver):
    """In the first state of A both are the same."""
    assert solver(FINITE["A"], 0.5).visits[0].action == 0


def test_tau_one_is_the_mean_in_every_objective():
    mdp = random_mdp(5)
    mean = iterated(mdp, 1.0).value
    for solver in (static, ecrm, naive, blind):
        assert solver(mdp, 1.0).value == pytest.approx(mean, abs=1e-9)


def test_a_coarse_resolution_is_within_its_bound():
    mdp = random_mdp(3, steps=4)
    exact = static(mdp, 0.3)
    rough = static(mdp, 0.3, resolution=0.05)
    assert 1e-6 < abs(rough.value - exact.value) <= 4 * 0.05 / 2


@pytest.mark.parametrize("tau", [0.02, 0.3, 1.0])
@pytest.mark.parametrize("decimals", [2, 8])  # rewards of two digits lie halfway between multiples
def test_a_coarse_optimum_is_within_its_bound_and_is_its_law_s(decimals, tau):
    for seed in range(20):
        mdp = random_mdp(seed, discount=1.0)
        mdp = dataclasses.replace(mdp, rewards=np.round(mdp.rewards * 2, decimals) / 2)
        for resolution in (0.01, 0.1, 0.5):
            rough = static(mdp, tau, resolution=resolution)
            assert rough.law.cvar(tau) == pytest.approx(rough.value, abs=1e-9)
            off = abs(rough.value - static(mdp, tau).value)
            assert off <= 3 * resolution / 2 + 1e-9


def test_a_coarse_optimum_is_no_worse_than_the_worst_return():
    """A c of 0.1 beside a return of 0.051, of which half of all are, would be worth 0.1 - 0.049 / 2 / tau."""
    mdp = FiniteMDP([[[0.5, 0.5]]], [[[0.051, 1.0]]], [[[END, END]]], horizon=1)
    rough = static(mdp, 0.01, resolution=0.1)
    assert (rough.value, rough.budget) == pytest.approx((0.1, 0.1))


def test_too_many_returns_are_refused_with_a_way_out():
    rng = np.random.default_rng(0)
    mdp = FiniteMDP(
        np.full((1, 9, 9), 1 / 9), rng.normal(size=(1, 9, 9)), np.zeros((1, 9, 9), int), horizon=9
    )
    with refused("algo.resolution=0.01"):
        static(mdp, 0.5)
    large = dataclasses.replace(mdp, rewards=1e6 * mdp.rewards)
    with refused("0.5 algo.resolution=5"):
        static(large, 0.5, resolution=0.5)


@pytest.mark.parametrize("solver", [static, iterated, ecrm, naive, blind, ecrm_of_states])
@pytest.mark.parametrize("tau", [0.0, -0.1, 1.5])
def test_tau_outside_its_range_is_refused(solver, tau):
    with refused("0 < tau <= 1"):
        solver(FINITE["A"], tau)


# As a run.


ENDLESS = FiniteMDP(
    [[[0.5, 0.5], [1.0, 0.0]]], [[[2.0, 1.0], [0.1, 0.1]]], [[[0, 0], [0, 0]]], discount=0.9
)
"""Its policy that is always paid 1 or 2 has 2 ** t sums of discounted rewards after t steps."""


@pytest.mark.parametrize("solve", [iterated, ecrm, naive])
def test_too_many_returns_are_refused_and_a_resolution_helps(monkeypatch, solve):
    monkeypatch.setattr(solvers, "MOST_POINTS", 500)
    with refused("500 algo.resolution=0.01"):
        solve(ENDLESS, 0.25)
    found = solve(ENDLESS, 0.25, resolution=0.1)
    if solve is not naive:
        assert found.value == pytest.approx(10)  # 1 / (1 - 0.9), whatever the law's resolution is
    assert found.law.mean == pytest.approx(15, abs=1)


def test_settings_reach_their_solver():
    """A resolution that rounds 0.1 away, and a weight between the mean and the tail."""
    mdp, config = ENDLESS, cvar_tabular.Config
    for objective, solver in (("iterated", iterated), ("ecrm", ecrm), ("naive", naive)):
        found = cvar_tabular.solve(config(objective=objective, tau=0.3, resolution=0.5), mdp)
        assert found.law.values.tolist() == solver(mdp, 0.3, resolution=0.5).law.values.tolist()
        assert len(found.law.values) < 60
    worth = [ecrm(mdps.wagers(), 0.3, weight=weight).value for weight in (0.4, 1.0)]
    found = cvar_tabular.solve(config(objective="ecrm", tau=0.3, weight=0.4), mdps.wagers()).value
    assert found == worth[0] != worth[1]


def test_policies_beyond_floats_are_counted():
    mdp = FiniteMDP(
        [[[0.25] * 4] * 2] * 4,
        [[[1.0, 2.0, 3.0, 4.0]] * 2] * 4,
        [[[0, 1, 2, 3]] * 2] * 4,
        discount=0.95,
    )
    with refused("2.00e+643"):
        blind(mdp, 0.25)


def play(root, task: str, **own) -> Run:
    algo = cvar_tabular.Config(**own)
    cfg = Config(algo=algo, task=task, steps=1, root=str(root), eval=Eval(episodes=400))
    run = Run(cfg, [0, 1], lambda *_: None)
    cvar_tabular.train(algo, run)
    return run


def test_a_run_prints_the_solution_and_plays_it(tmp_path, capsys):
    import json

    from corerl.risk import measures

    run = play(tmp_path, "risk/A", tau=0.5)
    printed = capsys.readouterr().out
    assert "static CVaR at tau 0.5: 2.2, reached at c = 4" in printed
    assert "choice          4      0          0.5    safe" in printed
    solution = json.loads((run.directory / "solution.json").read_text())
    assert solution["returns"] == [-2, 4, 5] and solution["value"] == pytest.approx(2.2)
    lines = (run.directory / "returns.jsonl").read_text().splitlines()
    for line in map(json.loads, lines):
        assert set(line["returns"]) == {-2, 4, 5}
        assert measures.cvar(np.array(line["returns"]), 0.5) == pytest.approx(2.2, abs=0.8)


def test_a_player_tells_a_policy_the_time_and_the_discounted_sum():
    """Of a horizon of 2; what ended long ago is still asked, at the last time."""
    mdp, asked = dataclasses.replace(mdps.hazard(), horizon=2), []
    player = TabularPlayer(mdp, [lambda *point: asked.append(point) or 1])
    for _ in range(2):
        player.begin(1, 1)
        for _ in range(3):
            player(torch.ones(1, 1, 1))
            player.reward(torch.full((1, 1), 2.0))
    assert asked == [(0, 0, 0.0), (1, 0, 2.0), (1, 0, pytest.approx(3.9))] * 2


def test_a_task_that_is_no_finite_mdp_is_refused(tmp_path):
    with refused("risk/D1 MDP"):
        play(tmp_path, "risk/D1")


@pytest.mark.parametrize("first", [3, np.zeros(2), np.array([0, 0, 1, 0]), np.array([1.0])])
def test_observations_that_do_not_begin_with_the_state_are_refused(tmp_path, monkeypatch, first):
    """Coordinates, say, or the time first: the policy would be played in other states."""
    monkeypatch.setattr(mdps.FiniteEnv, "_observation", lambda _: first)
    with refused("state one-hot"):
        play(tmp_path, "risk/A")
