"""What NeoRL-2's benchmark ran: equations, validation choice, tables, resume."""

import grids
import numpy as np
import pytest
import torch
from agreement import (
    SEEDS,
    WIDTH,
    A,
    B,
    O,
    actor_critic,
    assert_networks,
    generators,
    make_batches,
    make_noises,
    net,
    one_seed,
    scramble,
    set_linear,
    tiny,
)
from reference_neorl2 import BC as TheirBC
from reference_neorl2 import CQL as TheirCQL
from reference_neorl2 import EDAC as TheirEDAC
from reference_neorl2 import TD3BC as TheirTD3BC
from reference_neorl2 import weights_of
from small import cell, flatten, goes_on, run, state_of
from wording import refused

from corerl.algos import bc_neorl2, edac, td3_bc_neorl2
from corerl.algos.bc_neorl2 import ValidatedBC
from corerl.algos.cql_official import OfficialCQL
from corerl.algos.edac import EDAC
from corerl.algos.td3_bc_neorl2 import NeoRL2TD3BC
from corerl.config import Config, Eval
from corerl.launch.composition import cells
from corerl.nn import conservative, networks
from corerl.nn.learner import Spec
from corerl.older_settings import renamed
from corerl.training.run import Run

# The tables.

GRIDS = [("bc", "BC"), ("td3_bc", "TD3+BC"), ("cql", "CQL"), ("edac", "EDAC")]


def composed(*arguments: str) -> Config:
    (cell,) = cells([*arguments, "task=neorl2/DMSD"])
    return cell


@pytest.mark.parametrize(("name", "label"), GRIDS)
def test_each_task_has_the_settings_of_its_best_published_cell(name, label):
    runs = grids.published().query("algorithm == @label")
    means = runs.groupby(["task", "cell"])["return"].mean()
    assert means.groupby("task").idxmax().size == 7
    for task, best in means.groupby("task").idxmax().values:
        cfg = cell(f"{name}_neorl2", task)
        assert grids.cell_of(vars(cfg.algo)) == best, task
        grid = grids.GRIDS[cfg.algo.name]
        assert grid.mark is None or getattr(cfg.algo, grid.mark[0]) == grid.mark[1]


@pytest.mark.parametrize(("name", "label"), GRIDS)
def test_a_sweep_is_the_benchmarks_grid(name, label):
    grid = cells([f"sweep=neorl2_{name}"])
    runs = grids.published().query("algorithm == @label")
    runs = runs[runs["task"].isin(["neorl2/DMSD", "neorl2/Simglucose"])]
    theirs = set(zip(runs["task"], runs["cell"], strict=True))
    assert sorted((c.task, grids.cell_of(vars(c.algo))) for c in grid) == sorted(theirs)
    assert all(cfg.seeds == [7, 42, 210] for cfg in grid)


# BC.


def neorl2_bc(**settings) -> ValidatedBC:
    cfg = bc_neorl2.Config(hidden_width=WIDTH, validate_every=1, lr=1e-2, **settings)
    agent = ValidatedBC(cfg, Spec(O, A, generators()))
    scramble(agent.policy)
    return agent


@pytest.mark.parametrize("layers", [2, 3])
def test_bc_equals_the_equations(layers, float64):
    agent = neorl2_bc(hidden_layers=layers, batch_size=6)
    theirs = [TheirBC(net(agent.policy, s), 1e-2) for s in range(SEEDS)]
    held_out = make_batches(1)[0]
    s_val, a_val = held_out.observations[0], held_out.actions[0]
    for step, batch in enumerate(make_batches(12), 1):
        agent.update(batch)
        agent.validate(step, s_val, a_val)
        for s, their in enumerate(theirs):
            their.update(one_seed(batch, s))
            their.validate(s_val, a_val, 6)
    states = torch.randn(SEEDS, 5, O)
    for s, their in enumerate(theirs):
        assert_networks(net(agent.policy, s), weights_of(their.policy), 1e-9)
        assert_networks(net(agent.chosen.policy, s), weights_of(their.kept), 1e-9)
        assert float(agent.chosen.lowest[s]) == pytest.approx(their.lowest / 3)  # B = 6 + 6 + 4
        expected = their.kept(states[s])
        torch.testing.assert_close(agent.act(states)[s], expected.detach(), rtol=1e-9, atol=1e-9)
    assert B == 16 and not torch.equal(
        agent.chosen.policy.layers[0].weight, agent.policy.layers[0].weight
    )


def test_a_loss_without_tanh_by_hand():
    cfg = bc_neorl2.Config(hidden_layers=1, hidden_width=1)
    agent = ValidatedBC(cfg, Spec(1, 1, generators(1)))
    with torch.no_grad():
        for layer in agent.policy.layers:
            layer.weight.fill_(2)
            layer.bias.fill_(0)
    # The unit is 2 and leaky(-4) = -0.4, the output 4 and -0.8: errors 1 and 0.2, squares 1 and 0.04.
    batch = tiny(s=[[1], [-2]], a=[[3], [-1]])
    assert agent.loss(batch)[0].tolist() == pytest.approx([0.52])


def test_a_short_last_batch_counts_as_a_whole_one_and_each_seed_keeps_its_own_best():
    cfg = bc_neorl2.Config(batch_size=2, hidden_layers=0, validate_every=1)
    agent = ValidatedBC(cfg, Spec(1, 1, generators(2)))
    states, actions = torch.zeros(3, 1), torch.tensor([[0.0], [0.0], [2.0]])

    def at(step: int, *means: float) -> list[float]:
        with torch.no_grad():
            agent.policy.layers[0].bias.copy_(torch.tensor(means).view(2, 1, 1))
        agent.validate(step, states, actions)
        return agent.chosen.lowest.tolist()

    # Means m: batches of (m^2, m^2) and (m - 2)^2, so m = 0: (0 + 4) / 2; 2: (4 + 0) / 2; 1: (1 + 1) / 2.
    assert at(1, 0.0, 1.0) == [2.0, 1.0]
    assert at(2, 1.0, 2.0) == [1.0, 1.0]
    assert at(3, 1.0, 1.0) == [1.0, 1.0]
    assert agent.chosen.step.tolist() == [2, 1]  # a tie is no improvement
    at(4, 5.0, 6.0)
    assert agent.act(torch.zeros(2, 1, 1)).flatten().tolist() == [1.0, 1.0]


# TD3+BC.


def test_td3_bc_equals_the_equations(float64):
    cfg = td3_bc_neorl2.Config(hidden_width=WIDTH, alpha=0.1, policy_noise=1.5)
    rng = np.random.default_rng(3)
    mean, std = rng.normal(size=O), 0.5 + rng.random(O)
    normalizer = networks.Normalizer(torch.from_numpy(mean), torch.from_numpy(std))
    agent = NeoRL2TD3BC(cfg, Spec(O, A, generators(), normalizer=normalizer))
    scramble(agent.actor, agent.critic, agent.target_actor, agent.target_critic)
    theirs = [
        TheirTD3BC(*actor_critic(agent, s), mean, std, alpha=0.1, noise=1.5) for s in range(SEEDS)
    ]
    batches, noises = make_batches(8), make_noises(8)
    for i in range(0, 8, 2):
        agent.update(batches[i : i + 2], noises[i : i + 2])
    for s, their in enumerate(theirs):
        for epoch in (slice(0, 4), slice(4, 8)):
            their.epoch([one_seed(b, s) for b in batches[epoch]], [n[s] for n in noises[epoch]])
        assert_networks(actor_critic(agent, s), their.networks(), 1e-9)
    states = torch.randn(SEEDS, 5, O)
    for s, their in enumerate(theirs):
        played = their.play(their.actor, states[s]).detach()
        torch.testing.assert_close(agent.act(states)[s], played, rtol=1e-9, atol=1e-9)


def test_only_the_policy_sees_normalised_states():
    cfg = td3_bc_neorl2.Config(hidden_layers=0, actor_layers=None, alpha=1.0)
    normalizer = networks.Normalizer(torch.tensor([3.0]), torch.tensor([2.0]))
    agent = NeoRL2TD3BC(cfg, Spec(1, 1, generators(1), normalizer=normalizer))
    set_linear(agent.actor, [1], [0])
    set_linear(agent.critic, [[1, 0], [0, 0]], [0, 0])
    # At s = 3 the policy sees 0 and plays 0, Q1 sees 3: -(1 / 3) * 3 + (0 - 0.5)^2.
    loss, _ = agent.actor_loss(tiny(s=[[3]], a=[[0.5]]))
    assert loss.tolist() == pytest.approx([-0.75])


# CQL and EDAC, with the settings of their tables but for the width.


def soft_actor_critic(agent, seed: int, critics: int) -> tuple:
    """Copies of an agent's networks, in the order of the transcription's arguments."""
    online, targets = (
        [net(x, seed, i) for i in range(critics)] for x in (agent.critic, agent.target)
    )
    return net(agent.policy.body, seed), online, targets, net(agent.log_alpha, seed)["value"]


@pytest.mark.parametrize(
    ("threshold", "version"), [(-1, "false"), (-1, "true"), (2, "false"), (10, "true")]
)
def test_cql_equals_the_equations(threshold, version, float64):
    cfg = composed(
        *("algo=cql_neorl2", f"algo.threshold={threshold}", f"algo.importance_sampling={version}"),
        *(f"algo.hidden_width={WIDTH}", "algo.samples=3"),
    )
    agent = OfficialCQL(cfg.algo, Spec(O, A, generators()))
    scramble(agent.policy, agent.critic, agent.target, agent.log_alpha, agent.log_alpha_prime)

    def mine(s: int) -> tuple:
        return *soft_actor_critic(agent, s, 2), net(agent.log_alpha_prime, s)["value"]

    theirs = []
    for s in range(SEEDS):
        *networks_, prime = mine(s)
        theirs.append(TheirCQL(*networks_, log_alpha_prime=prime, settings=cfg.algo))
    for i, batch in enumerate(make_batches(6)):
        batch = batch._replace(actions=batch.actions.clamp(-0.99, 0.99))
        noise, uniforms = torch.randn(SEEDS, 8, B, A), torch.rand(SEEDS, 3, B, A)
        draws = conservative.CQLNoise(*noise.split([1, 1, 3, 3], 1))
        (agent.warm_start if i < 3 else agent.update)(batch, draws, uniforms)
        for s, their in enumerate(theirs):
            their.update(one_seed(batch, s), noise[s], uniforms[s], cloning=i < 3)
    for s, their in enumerate(theirs):
        assert_networks(mine(s), their.networks(), 1e-9)


def test_edac_equals_the_equations(float64):
    cfg = composed("algo=edac_neorl2", "algo.critics=3", f"algo.hidden_width={WIDTH}")
    agent = EDAC(cfg.algo, Spec(O, A, generators()))
    scramble(agent.policy, agent.critic, agent.target)
    with torch.no_grad():
        agent.log_alpha.value.copy_(torch.tensor([-0.4, 0.3]))  # e^0.3 is used as 1
    theirs = [TheirEDAC(*soft_actor_critic(agent, s, 3), settings=cfg.algo) for s in range(SEEDS)]
    for batch in make_batches(6):
        noise = torch.randn(SEEDS, 2, B, A)
        agent.update(batch, edac.EDACNoise(torch.zeros(SEEDS, B, A), *noise.unbind(1)))
        for s, their in enumerate(theirs):
            their.update(one_seed(batch, s), noise[s])
    for s, their in enumerate(theirs):
        assert_networks(soft_actor_critic(agent, s, 3), their.networks(), 1e-9)


def test_networks_of_cql_and_edac_begin_as_offlinerls():
    """nn.Linear's, but for EDAC's critics: normal, half of 1/sqrt of the inputs wide, outputs +-3e-3."""
    one, other = (
        agent(composed(f"algo={name}_neorl2").algo, Spec(6, 2, generators(1)))
        for name, agent in (("cql", OfficialCQL), ("edac", EDAC))
    )
    for layer in (*one.policy.body.layers, *one.critic.layers, *other.policy.body.layers):
        bound = layer.weight.shape[-2] ** -0.5
        assert 0.97 * bound < layer.weight.abs().max() <= bound
        assert 0 < layer.bias.abs().max() <= bound
    *hidden, output = other.critic.layers
    for layer in hidden:
        std = 0.5 * layer.weight.shape[-2] ** -0.5
        assert layer.weight.std().item() == pytest.approx(std, rel=0.02)
        assert (layer.bias == 0.1).all() and layer.weight.abs().max() > 3 * std
    assert 0.9 * 3e-3 < output.weight.abs().max() <= 3e-3
    assert 0 < output.bias.abs().max() <= 3e-3


# Through the loop, on files in the layout of NeoRL-2's.


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.setenv("CORERL_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "data" / "neorl2").mkdir(parents=True)
    for split, n in (("train", 200), ("val", 70)):
        rng = np.random.default_rng(n)
        obs = rng.normal(3, 2, size=(n, 6)).astype(np.float32)
        np.savez(
            tmp_path / "data" / "neorl2" / f"DMSD-{split}.npz",
            obs=obs,
            action=np.tanh(obs[:, :2] + rng.normal(size=(n, 2))).astype(np.float32),
            next_obs=np.roll(obs, -1, 0),
            reward=rng.normal(size=n).astype(np.float32),
            done=np.zeros(n, np.float32),
            truncated=(np.arange(n) % 10 == 9).astype(np.float32),
        )


def job(root, steps: int = 80, **others) -> Config:
    often = {"eval": Eval(episodes=0), "log_every": 10, "save_every": 20}
    cell = {"task": "neorl2/DMSD", "root": str(root), "compile": "off", "device": "cpu"}
    own = {"hidden_width": 8, "batch_size": 8, "validate_every": 10, "lr": 1e-2} | others
    return Config(algo=bc_neorl2.Config(**own), steps=steps, **often, **cell)


@pytest.mark.filterwarnings("ignore:.*not the released")
def test_a_run_that_validates_ends_stopped_and_resumed_as_an_unbroken_one(tmp_path, files):
    goes_on(job(tmp_path), tmp_path, (36,), (0, 4))


@pytest.mark.filterwarnings("ignore:.*not the released")
def test_validation_leaves_training_alone_and_needs_a_whole_epoch(tmp_path, files):
    states = [state_of(run(job(tmp_path / str(every), validate_every=every))) for every in (0, 10)]
    policies = [flatten(state["agent"]["policy"]) for state in states]
    assert policies[0] == policies[1]
    steps = states[1]["agent"]["chosen"]["step"]
    assert (steps % 10 == 0).all() and (steps > 0).all()
    with refused("validate_every=10 steps=5"):
        run(job(tmp_path / "short", steps=5))


FOLDERS_OF_BEFORE = [
    (
        {"name": "bc", "squash": False, "leak": 0.1, "validate_every": 10},
        {"name": "bc_neorl2", "leak": 0.1, "validate_every": 10},
    ),
    ({"name": "td3_bc", "actor_first": True, "raw_critic": True}, {"name": "td3_bc_neorl2"}),
    ({"name": "a2pr", "actor_first": False, "raw_critic": False}, {"name": "a2pr"}),
    ({"name": "bc", "squash": True, "leak": 0.0, "validate_every": 0}, {"name": "bc"}),
    ({"name": "bc", "squash": False, "leak": 0.1}, {"name": "bc", "squash": False, "leak": 0.1}),
    ({"name": "iql", "squash": False}, {"name": "iql", "squash": False}),
    ({"name": "cql", "order": "joint", "bc_steps": 0, "backup_entropy": False}, {"name": "cql"}),
    (
        {"name": "cql", "order": "in_turn", "bc_steps": 9},
        {"name": "cql_official", "order": "in_turn", "bc_steps": 9},
    ),
    *(
        ({"name": "cql"} | only, {"name": "cql_official"} | only)
        for only in ({"lagrange": "official"}, {"init": "torch"}, {"max_backup": "per_critic"})
    ),
    (
        {"name": "iql", "squash": False, "advantage": "online", "stale_target": True}
        | {"critic_layer_norm": True, "init": "glorot", "beta": 3.0},
        {"name": "iql_ogbench", "beta": 3.0},
    ),
]


@pytest.mark.parametrize(("saved", "today"), FOLDERS_OF_BEFORE)
def test_a_folder_of_before_these_files_is_understood(saved, today):
    """Settings that no file has today are left, so that the reader names them."""
    assert renamed({"algo": saved | {"lr": 1.0}})["algo"] == today | {"lr": 1.0}


def test_a_task_without_a_validation_file_is_refused(tmp_path):
    algo = bc_neorl2.Config(validate_every=10)
    cfg = Config(algo=algo, task="corerl/pendulum", root=str(tmp_path), eval=Eval(episodes=0))
    with refused("validation"):
        bc_neorl2.train(algo, Run(cfg, [0], lambda *_: None))
