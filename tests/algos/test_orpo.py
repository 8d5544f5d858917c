"""ORPO: numbers by hand, the bounds, optima against another solver, the door, runs."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.optimize import minimize
from small import run

from corerl.algos import orpo
from corerl.config import Config, Eval
from corerl.data import tasks
from corerl.envs.one_door import OneDoorEnv
from corerl.errors import CorerlError
from corerl.risk.finite_mdp import FiniteMDP
from corerl.risk.occupancy import occupancy_of, softmax

DOOR = OneDoorEnv()
COEFFICIENTS = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


def bandit(proxy, truth, reference) -> SimpleNamespace:
    mdp = FiniteMDP.from_matrices(np.ones((1, len(truth), 1)), np.array([truth]), horizon=1)
    return SimpleNamespace(mdp=mdp, proxy=np.array([proxy]), reference=np.array([reference]))


def random_problem(seed: int) -> SimpleNamespace:
    """Four states, three actions, discounted; proxy and truth correlate under the reference, mostly."""
    rng = np.random.default_rng(seed)
    truth = rng.standard_normal((4, 3))
    mdp = FiniteMDP.from_matrices(rng.dirichlet(np.ones(4), (4, 3)), truth, discount=0.9)
    proxy = truth + rng.standard_normal((4, 3))
    return SimpleNamespace(mdp=mdp, proxy=proxy, reference=rng.dirichlet(np.ones(3), 4))


def numbers(env, policy) -> dict[str, float]:
    problem, visits = orpo.Problem(env), occupancy_of(env.mdp, policy)
    return problem.numbers(visits.reshape(-1, *env.mdp.sizes).sum(0) / visits.sum())


def test_gains_and_chi_square_by_hand():
    """A coin of two arms, each taken half of the time; the proxy agrees. Arm 1 with 3/4."""
    found = numbers(bandit([4.0, 0.0], [1.0, 0.0], [0.5, 0.5]), np.array([[0.75, 0.25]]))
    # standardised rewards are +1 and -1; chi2 = 2 (9/16 + 1/16) - 1
    assert found == pytest.approx(
        {"correlation": 1.0, "proxy": 0.5, "true": 0.5, "chi2": 0.25}
        | {"paper_bound": 0.5, "linear_bound": 0.5, "bound": 0.5}
    )


@pytest.mark.parametrize("seed", range(20))
def test_the_true_gain_is_never_below_the_bounds(seed):
    env, rng = random_problem(seed), np.random.default_rng(seed)
    for _ in range(50):
        found = numbers(env, rng.dirichlet(np.full(3, rng.choice([0.1, 1.0, 10.0])), 4))
        assert found["true"] >= found["bound"] - 1e-9
        assert found["bound"] >= found["linear_bound"] - 1e-9
        if found["correlation"] > 0:
            assert found["true"] >= found["paper_bound"] - 1e-9


def objective_of(cfg: orpo.Config, env, policy) -> float:
    """The regularised objective, written once more from the policy alone."""
    mdp, weights, state, going = env.mdp, 0.0, env.mdp.start, 1.0
    kernel, p, p0 = np.zeros((*mdp.sizes, mdp.sizes[0])), [], []
    for s, a, k in np.ndindex(mdp.probabilities.shape):
        kernel[s, a, mdp.successors[s, a, k]] += mdp.probabilities[s, a, k]
    for rows, out in ((policy, p), (env.reference, p0)):
        state, going, weights = mdp.start, 1.0, 0.0
        total = np.zeros(mdp.sizes)
        for t in range(mdp.steps):
            row = rows[t] if rows.ndim == 3 else rows
            total += going * state[:, None] * row
            weights += going
            state, going = np.einsum("s,sa,sat->t", state, row, kernel), going * mdp.discount
        out.append(total / weights)
    (p,), (p0,) = p, p0
    mean = (p0 * env.proxy).sum()
    std = np.sqrt((p0 * (env.proxy - mean) ** 2).sum())
    gain = (p * (env.proxy - mean) / std).sum()
    if cfg.measure == "state":
        p, p0 = p.sum(1), p0.sum(1)
    chi2 = (p**2 / p0).sum() - 1
    found = {"chi2": chi2, "sqrt_chi2": np.sqrt(max(0, chi2)), "kl": (p * np.log(p / p0)).sum()}
    if cfg.penalty == "action_kl":
        found["action_kl"] = (p * np.log(policy / env.reference)).sum()
    return gain - cfg.coefficient * found[cfg.penalty]


@pytest.mark.parametrize(
    ("penalty", "measure"),
    [
        *(("chi2", "state_action"), ("chi2", "state"), ("sqrt_chi2", "state_action")),
        *(("kl", "state_action"), ("action_kl", "state_action")),
    ],
)
@pytest.mark.parametrize("seed", [1, 4])
def test_the_optimum_is_another_solvers(penalty, measure, seed):
    env = random_problem(seed)
    cfg = orpo.Config(penalty=penalty, coefficient=0.4, measure=measure)
    policy, found = orpo.solve(cfg, env)
    mine = objective_of(cfg, env, policy)
    loss = lambda x: -objective_of(cfg, env, softmax(x.reshape(4, 3)))  # noqa: E731
    other = minimize(loss, np.log(env.reference).ravel(), method="BFGS")
    assert mine >= -other.fun - 1e-4 and found["gap"] < 2e-3


def test_a_regulariser_of_actions_hacks_at_every_strength_and_chi_square_does_not():
    assert orpo.Problem(DOOR).correlation > 0.7
    true = {
        penalty: [
            orpo.solve(orpo.Config(penalty=penalty, coefficient=c), DOOR)[1]["true"]
            for c in COEFFICIENTS
        ]
        for penalty in ("action_kl", "chi2")
    }
    assert max(true["action_kl"]) < 0
    assert max(true["chi2"]) > 0.6 and min(true["chi2"][2:]) > 0
    assert true["chi2"][0] < -1, "without strength, chi-square hacks too"


def test_from_one_standard_deviation_on_the_root_of_chi_square_keeps_the_reference():
    policy, found = orpo.solve(orpo.Config(penalty="sqrt_chi2", coefficient=1.0), DOOR)
    assert found["true"] == pytest.approx(0, abs=1e-5) and found["chi2"] < 1e-9
    np.testing.assert_allclose(policy, np.broadcast_to(DOOR.reference, policy.shape), atol=1e-5)


def job(root, **changes) -> Config:
    cell = {"task": "risk/one-door", "steps": 1, "eval": Eval(every=1, episodes=200)}
    return Config(algo=orpo.Config(), **({"root": str(root)} | cell | changes))


def test_a_run_prints_writes_and_plays(tmp_path, capsys):
    folder = run(job(tmp_path))
    assert "true +0.645" in capsys.readouterr().out
    written = json.loads((folder / "solution.json").read_text())
    policy = np.array(written["policy"])
    visits = occupancy_of(DOOR.mdp, policy)
    value = (visits * [[1.0, 0.0, 0.0], [-1.0] * 3]).sum()
    lines = [json.loads(line) for line in (folder / "returns.jsonl").read_text().splitlines()]
    played = np.array([line["returns"] for line in lines])
    assert abs(played.mean() - value) < 4 * played.std() / np.sqrt(played.size)


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (None, ("risk/machine", "proxy", "reference")),
        ({"reference": np.array([[0.5, 0.5, 0.0]] * 2)}, ("risk/one-door", "chi-square")),
    ],
    ids=["proxy", "never"],
)
def test_what_has_no_proxy_or_leaves_an_action_out_raises_an_error(monkeypatch, env, words):
    task = tasks.resolve(words[0])
    if env is not None:
        made = OneDoorEnv()
        vars(made).update(env)
        monkeypatch.setattr(tasks.Task, "make_env", lambda self: made)
    with pytest.raises(CorerlError) as refused:
        orpo.check_task(task)
    assert all(word in str(refused.value) for word in words)
