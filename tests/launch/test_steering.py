"""A policy whose samples another run's critic chooses from: `corerl evaluate RUN --steer OTHER`."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from small import config

from corerl.cli import main
from corerl.data.tasks import resolve
from corerl.errors import CorerlError
from corerl.launch import launch, worker
from corerl.policies.load import load
from corerl.policies.restored import Shapes
from corerl.policies.steering import Steered
from corerl.runs.directory import cell_directory

OWN = {"hidden_width": 8, "hidden_layers": 1}
RUNS = {
    "iql": {},
    "ifql": {"own": {"samples": 4}},
    "fql": {},
    "td3_bc": {},
    "td3_bc_neorl2": {},
    "bc": {},
    "cql": {"own": {"samples": 2}},
    "crr": {"seeds": [3, 5]},
    "iql cartpole": {"task": "corerl/cartpole"},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Makes a run of an algorithm, seeds 0 and 3, when it is asked for."""
    made: dict[str, Path] = {}

    def run(name: str) -> Path:
        if name not in made:
            algo, settings = name.split()[0], {"seeds": [0, 3]} | RUNS[name]
            own = ({} if algo == "cql" else OWN) | settings.pop("own", {})
            if algo == "cql":
                own |= {"hidden_width": 8, "policy_layers": 1, "critic_layers": 1}
            root = tmp_path_factory.mktemp("steering")
            cfg = config(root, algo, own=own, steps=4, **settings)
            launch.write_settings(cfg)
            assert worker.train(cfg, cfg.seeds, lambda *_: None) == worker.DONE
            made[name] = cell_directory(cfg)
        return made[name]

    return run


PI, Q = np.array([0.5, 0.3, 0.2]), np.array([0.0, 1.0, 2.0])


class Bandit:
    """One seed, one state, three one-hot actions of probabilities PI and values Q."""

    seeds, path, shapes = [0], "a/run", Shapes((1,), 3, 1)
    task = resolve("gym/CartPole-v1")

    def check_proposes(self): ...

    def check_values(self): ...

    def propose(self, observations, noise):
        u = torch.special.ndtr(noise[..., 0].double())
        number = (u[..., None] > torch.tensor(PI.cumsum()[:-1])).sum(-1)
        return torch.nn.functional.one_hot(number, 3).float()

    def values(self, observations, actions):
        return actions @ torch.tensor(Q, dtype=torch.float32)


def enumerated(count: int, temperature: float) -> np.ndarray:
    """The law of the chosen action over all draws of `count` proposals."""
    law = np.zeros(3)
    for drawn in itertools.product(range(3), repeat=count):
        weights = np.exp(Q[list(drawn)] / temperature)
        for action, weight in zip(drawn, weights / weights.sum(), strict=True):
            law[action] += PI[list(drawn)].prod() * weight
    return law


@pytest.mark.parametrize(
    ("count", "distance", "mean"),
    [(1, 0.3291, 0.7), (2, 0.2252, 0.9494), (4, 0.1285, 1.139), (8, 0.0645, 1.2486)],
)
def test_the_law_of_the_chosen_action_is_that_of_enumeration(count, distance, mean):
    """It tends to pi e^(Q / T) as samples grow, from the policy at one."""
    law = enumerated(count, 1.0)
    limit = PI * np.exp(Q) / (PI * np.exp(Q)).sum()
    assert 0.5 * np.abs(law - limit).sum() == pytest.approx(distance, abs=1e-4)
    assert law @ Q == pytest.approx(mean, abs=1e-4)
    actions = Steered(Bandit(), Bandit(), count, 1.0)(torch.zeros(1, 200_000, 1))
    shares = torch.bincount(actions.flatten(), minlength=3) / 200_000
    np.testing.assert_allclose(shares, law, atol=5 * math.sqrt(0.25 / 200_000))


def test_at_temperature_zero_it_takes_the_best():
    actions = Steered(Bandit(), Bandit(), 3, 0.0)(torch.zeros(1, 100_000, 1))
    shares = torch.bincount(actions.flatten(), minlength=3) / 100_000
    none = 1 - PI[::-1].cumsum()  # no proposal among the best ones
    expected = [none[1] ** 3, none[0] ** 3 - none[1] ** 3, 1 - none[0] ** 3]
    np.testing.assert_allclose(shares, expected, atol=0.01)


def drawn(steered: Steered, states, *shape: int) -> torch.Tensor:
    """The first draws that a steered policy makes."""
    fresh = Steered(steered._agent, steered._other)
    return fresh.draws(torch.randn, states, *shape)


@pytest.mark.parametrize("name", ["iql", "fql", "ifql", "cql"])
def test_one_sample_is_the_policys_bit_for_bit(runs, name):
    agent = load(runs(name))
    steered = Steered(agent, load(runs("iql")), 1)
    states = torch.rand(2, 3, 3)
    noise = drawn(steered, states, 1, 1)[:, :, 0]
    assert torch.equal(steered(states), agent.propose(states, noise))


def test_ifql_steered_by_itself_at_zero_is_ifql(runs):
    agent = load(runs("ifql"))
    steered = Steered(agent, agent, 4, 0.0)
    states = torch.rand(2, 3, 3)
    noise = drawn(steered, states, 4, 1)
    (group, parts), *_ = agent.states()
    assert group == [0, 3]
    assert torch.equal(steered(states), parts["agent"].explore(states, noise))


@pytest.mark.parametrize("other", ["cql", "td3_bc", "td3_bc_neorl2", "ifql"])
def test_the_critic_is_the_other_runs_at_its_own_observations(runs, other):
    agent, judge = load(runs("iql")), load(runs(other))
    steered = Steered(agent, judge, 5, 0.0)
    states = torch.rand(2, 3, 3)
    noise = drawn(steered, states, 5, 1)
    each = [agent.propose(states, noise[:, :, k]) for k in range(5)]
    critic = judge.states()[0][1]["agent"]
    q = [judge.values(states, a[:, :, None])[..., 0] for a in each]
    seen = states if other == "td3_bc_neorl2" else critic.normalizer(states)
    if other != "cql":
        torch.testing.assert_close(q[0], critic.critic(seen, each[0]).amin(1))
    chosen = torch.stack(q, -1).argmax(-1)
    expected = torch.stack(each, 2).gather(2, chosen[..., None, None]).squeeze(2)
    torch.testing.assert_close(steered(states), expected)
    assert len({int(i) for i in chosen.flatten()}) > 1


def test_discrete_policies_are_steered_too(runs):
    agent = load(runs("iql cartpole"))
    actions = Steered(agent, agent, 4)(torch.rand(2, 3, 4))
    assert actions.shape == (2, 3) and set(actions.flatten().tolist()) <= {0, 1}


def test_the_command_plays_every_pair_and_keeps_how(runs, capsys):
    run, other = runs("iql"), runs("cql")
    (run / "evaluations.jsonl").unlink(missing_ok=True)
    command = ["evaluate", str(run), "--steer", str(other), "--samples", "1,5"]
    assert main([*command, "--temperature", "0,1", "--episodes", "1"]) == 0
    lines = [json.loads(line) for line in (run / "evaluations.jsonl").open()]
    pairs = [(n, t) for n in (1, 5) for t in (0.0, 1.0)]
    assert [(x["samples"], x["temperature"]) for x in lines[::2]] == pairs
    assert {x["steer"] for x in lines} == {str(other)}
    assert lines[0]["returns"] == lines[2]["returns"] != lines[4]["returns"]
    assert f"steer {other.name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("one", "other", "shown"),
    [
        ("td3_bc", "iql", "TD3BC"),
        ("iql", "bc", "BC"),
        ("iql", "iql cartpole", "shapes"),
        ("iql", "crr", "seed 0"),
    ],
)
def test_pairs_that_cannot_be_steered_raise(runs, one, other, shown):
    with pytest.raises(CorerlError, match=shown):
        Steered(load(runs(one)), load(runs(other)))


def test_a_seed_that_both_have_is_steered(runs):
    agent, other = load(runs("iql"), 3), load(runs("crr"))
    assert Steered(agent, other)(torch.rand(1, 2, 3)).shape == (1, 2, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        ["--steer", "{other}", "--samples", "0"],
        ["--steer", "{other}", "--samples", "2.5"],
        ["--steer", "{other}", "--temperature", "-1"],
        ["--samples", "3"],
        ["--steer", "{other}", "--method", "fqe"],
    ],
)
def test_wrong_numbers_and_useless_options_are_one_sentence(runs, capsys, wrong):
    given = [text.format(other=runs("cql")) for text in wrong]
    assert main(["evaluate", str(runs("iql")), *given]) == 2
    assert given[-2] in capsys.readouterr().err
