"""MD3QN and HRA: transcriptions, MMD by hand, bounded memory, and the mazes' exact joint laws."""

import math

import numpy as np
import pytest
import torch
from exact_mazes import joint_moments
from reference_distributional import HRA as ReferenceHRA
from reference_distributional import MD3QN as Reference
from reference_distributional import SEEDS, A, B, K, O, agree, make_transitions
from small import config, state_of
from wording import refused

from corerl import seeding
from corerl.algos import hra, md3qn
from corerl.algos.md3qn import MD3QN, Config
from corerl.envs import mazes
from corerl.launch.settings_tables import table
from corerl.nn.learner import Spec
from corerl.training.experience import Collect
from corerl.training.run import Run

SMALL = {"hidden_layers": 2, "hidden_width": 8, "lr": 1e-2}
PAPER = {"kernel_weight": "equal", "distance": "sum"}
SWITCHES = {
    "authors": {},
    "paper": PAPER,
    "unbiased": {"estimator": "u"},
    "mmdqn": {"kernel_weight": "equal", "bandwidths": [1.0, 2.0, 3.0]},
    "uniform": {"policy": "uniform", "data": Collect(epsilon=1.0)},
}


def agent_of(seeds=SEEDS, sources=K, **changes):
    cfg = Config(**SMALL, **{"particles": 3, "bandwidths": [0.25, 2.0]} | changes)
    return MD3QN(cfg, Spec((O,), A, seeding.generators(range(seeds), "init"), sources=sources))


@pytest.mark.parametrize("switch", SWITCHES)
def test_five_updates_equal_the_equations(switch, tolerance):
    sources = 1 if switch == "mmdqn" else K
    agent = agent_of(sources=sources, **SWITCHES[switch])
    draws = None
    if switch == "uniform":
        draws = torch.rand(5, SEEDS, B, generator=seeding.generator(0, "test"))
    batches = make_transitions(5, sources)
    agree(Reference, agent, agent.particles, batches, draws, tolerance)


@pytest.mark.parametrize("bootstrap", ["own", "total"])
def test_hra_equals_the_equations(bootstrap, tolerance):
    cfg = hra.Config(**SMALL, bootstrap=bootstrap)
    agent = hra.HRA(cfg, Spec((O,), A, seeding.generators(range(SEEDS), "init"), sources=K))
    agree(ReferenceHRA, agent, agent.heads, make_transitions(5), None, tolerance)


def test_mmd_by_hand():
    # x = {0, 2}, y = {1, 1} in one dimension; in the second, all are 0.
    x = torch.tensor([[[[0.0, 0.0], [2.0, 0.0]]]])
    y = torch.tensor([[[[1.0, 0.0], [1.0, 0.0]]]])
    e = math.exp
    cases = {
        ("v", "sum"): (2 + 2 * e(-4)) / 4 + 1 - 2 * e(-1),
        ("v", "mean"): (2 + 2 * e(-2)) / 4 + 1 - 2 * e(-0.5),
        ("u", "sum"): e(-4) + 1 - 2 * e(-1),
    }
    for (estimator, distance), expected in cases.items():
        agent = agent_of(1, bandwidths=[1.0], estimator=estimator, distance=distance)
        assert float(agent.squared_mmd(x, y)) == pytest.approx(expected, rel=1e-6)
    weighted = agent_of(1, bandwidths=[4.0, 1.0], distance="sum")  # sqrt(4) = 2
    wide = (2 + 2 * e(-1)) / 4 + 1 - 2 * e(-0.25)
    expected = 2 * wide + cases["v", "sum"]
    assert float(weighted.squared_mmd(x, y)) == pytest.approx(expected, rel=1e-6)
    assert float(weighted.squared_mmd(x, x)) == 0


def test_the_paper_s_sum_has_the_code_s_gradient_and_the_unbiased_one_has_not():
    x = torch.randn(1, 2, 4, K, generator=seeding.generator(0, "x")).requires_grad_()
    y = torch.randn(1, 2, 4, K, generator=seeding.generator(1, "x"))
    code, unbiased = (agent_of(1, estimator=estimator) for estimator in ("v", "u"))
    found = [md3qn.gaussian_mixture((x[..., None, :] - z[..., None, :, :]).square().mean(-1),
                            code._bandwidths, code._weights) for z in (x, y)]  # fmt: skip
    off_diagonal = 1 - torch.eye(4)
    paper = ((found[0] * off_diagonal).sum((-2, -1)) - 2 * found[1].sum((-2, -1))).sum()
    theirs = torch.autograd.grad(paper, x)[0] / 4**2
    ours, other = (torch.autograd.grad(a.squared_mmd(x, y).sum(), x)[0] for a in (code, unbiased))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    assert (other - theirs).abs().max() > 0.1 * theirs.abs().max()


@pytest.mark.parametrize("chunk", [1, 7, 10**6])
def test_chunks_change_neither_the_kernel_nor_its_slope(chunk, monkeypatch):
    monkeypatch.setitem(md3qn.CHUNK, "cpu", chunk)
    d = (10 * torch.rand(2, 3, 4, dtype=torch.float64)).requires_grad_()
    bandwidths = torch.tensor([0.25, 1.0, 8.0], dtype=torch.float64)
    weights = bandwidths.sqrt()
    ours = md3qn.gaussian_mixture(d, bandwidths, weights)
    plain = (weights * torch.exp(-d[..., None] / bandwidths)).sum(-1)
    torch.testing.assert_close(ours, plain)
    slopes = (torch.autograd.grad(k.square().sum(), d)[0] for k in (ours, plain))
    torch.testing.assert_close(*slopes)


def test_nothing_of_the_size_of_a_kernel_per_bandwidth_is_kept():
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: kept.append(t.numel()) or t, lambda t: t
    ):
        agent = agent_of(1, particles=30, bandwidths=[2.0**i for i in range(17)])
        x = torch.randn(1, 5, 30, 2, requires_grad=True)
        agent.squared_mmd(x, torch.randn(1, 5, 30, 2))
    assert max(kept) <= 3 * 5 * 30 * 30 * 2  # the differences by source; never times 17


def test_a_fresh_network_is_dopamines():
    """Uniform weights of variance 1 / (sqrt(3) * inputs), biases 0."""
    cfg = Config()
    network = MD3QN(cfg, Spec((O,), A, seeding.generators([0], "init"), sources=K)).particles
    for layer in (*network.encoder.dense.layers, network.head):
        inputs = layer.weight.shape[-2]
        expected = (3**-0.5 / inputs) ** 0.5
        assert layer.weight.std().item() == pytest.approx(expected, rel=0.03)
        assert layer.weight.abs().max() <= 3**0.5 * expected and not layer.bias.any()


@pytest.mark.parametrize("kind", ["md3qn", "hra"])
def test_the_best_action_is_that_of_the_mean_total(kind):
    """Action 1 has the best sum over sources; others a better source, 2 for sure and 8 one time in 3."""
    laws = torch.zeros(A, 3, K)
    laws[1], laws[2, :, 0], laws[3, 0, 2] = torch.tensor([1.0, 1.5, 1.0]), 2.0, 8.0
    agent, rngs = agent_of(1), seeding.generators([0], "init")
    network = agent.particles
    if kind == "hra":
        agent = hra.HRA(hra.Config(**SMALL), Spec((O,), A, rngs, sources=K))
        network, laws = agent.heads, laws.mean(1)
    with torch.no_grad():
        network.head.weight.zero_()
        network.head.bias.copy_(laws.view(1, 1, -1))
    assert agent.act(torch.zeros(1, 2, O)).tolist() == [[1, 1]]


def test_equal_actions_share_the_target():
    agent = agent_of(1)
    particles = torch.zeros(1, 1, A, 3, K)
    particles[0, 0, 1:3] = 1.0
    assert agent.next_policy(particles, None).tolist() == [[[0, 0.5, 0.5, 0]]]
    drawn = agent.next_policy(particles, torch.tensor([[0.99]]))
    assert drawn.tolist() == [[[0, 0, 0, 1]]]


def test_a_task_without_rewards_by_source_is_refused_with_the_reason(tmp_path):
    pytest.importorskip("ale_py")
    for task in ("atari/Breakout", "gym/CartPole-v1"):
        cfg = config(tmp_path, "md3qn", task=task)
        with refused(f"{task} reward"):
            md3qn.train(cfg.algo, Run(cfg, [0], lambda *_: None))


def learned(tmp_path, name: str, steps: int) -> np.ndarray:
    """Particles `(M, K)` of Z(s0, up), from a run with the table's settings."""
    task = f"maze/{name}-vector"
    rows = table("md3qn", task)
    data = {k.removeprefix("algo.data."): v for k, v in rows.items() if ".data." in k}
    own = {k.removeprefix("algo."): v for k, v in rows.items() if ".data." not in k}
    own = {"batch_size": 32} | own | {"data": Collect(**data)}
    cfg = config(tmp_path, "md3qn", own=own, task=task, steps=steps, save_every=steps)
    run = Run(cfg, [0], lambda *_: None)
    md3qn.train(cfg.algo, run)
    env = mazes.make(f"{name}-vector")
    first, _ = env.reset(seed=0)
    agent = MD3QN(cfg.algo, Spec(first.shape, 4, run.rngs(), sources=len(env.maze.sources)))
    agent.load_state_dict(state_of(run.directory)["agent"])
    with torch.no_grad():
        return agent.particles(torch.from_numpy(first)[None, None])[0, 0, 0].numpy()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["v0", "v1"])
def test_the_joint_law_of_a_maze_is_learned(tmp_path, name):
    """Up is a wall at the start, so that Z(s0, up) = 0.99 Z(s0)."""
    mean, covariance = joint_moments(mazes.MAZES[name])
    particles = learned(tmp_path, name, 60_000) / 0.99
    assert np.abs(particles.mean(0) - mean).max() < 0.03
    scale = np.sqrt(np.diag(covariance))
    correlation = covariance / np.outer(scale, scale)
    ours = np.corrcoef(particles.T)
    assert (np.sign(ours) == np.sign(correlation)).all()
    assert np.abs(ours - correlation).max() < 0.1


def test_greedy_is_not_evaluated_at_random():
    """The table of maze/v0 to v2 is for the uniform policy, with both epsilons 1."""
    with refused("algo.policy=greedy algo.data.eval_epsilon 1"):
        Config(data=Collect(eval_epsilon=1.0))
    Config(policy="uniform", data=Collect(epsilon=1.0, eval_epsilon=1.0))
