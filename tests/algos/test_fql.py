"""FQL and IFQL: equations of the authors' code, losses by hand, tables of the published commands."""

import numpy as np
import pytest
import reference_fql
import torch
from agreement import (
    SEEDS,
    WIDTH,
    A,
    B,
    O,
    as_tensor,
    assert_losses,
    assert_networks,
    generators,
    make_batches,
    net,
    one_seed,
    scramble,
    set_linear,
    tiny,
    twins,
)
from small import cell

from corerl.algos import fql, ifql
from corerl.errors import CorerlError
from corerl.nn import flow
from corerl.nn.learner import Spec

SMALL = {"hidden_width": WIDTH, "hidden_layers": 2, "flow_steps": 3, "discount": 0.9}
RNG = np.random.default_rng(5)


def make(kind=fql, observations: int = O, actions: int = A, seeds: int = SEEDS, **own):
    spec = Spec(observations, actions, generators(seeds))
    return kind.build(kind.Config(**SMALL | own), spec)


def normal(*shape: int) -> torch.Tensor:
    return as_tensor(RNG.normal(size=(SEEDS, *shape)))


def times(rows: int = B) -> torch.Tensor:
    return as_tensor(RNG.random((SEEDS, rows, 1)))


def parts(agent, seed: int) -> tuple:
    implicit = isinstance(agent, ifql.IFQL)
    others = (agent.value, agent.flow) if implicit else (agent.flow, agent.policy)
    return twins(agent.critic, seed), *(net(x, seed) for x in others), twins(agent.target, seed)


def compared(agent, kind: type, draw, tolerance: float) -> list:
    """Takes six updates of an agent and of its transcription, and compares losses and networks."""
    theirs = [kind(agent.cfg, *parts(agent, s)) for s in range(SEEDS)]
    for batch in make_batches(6):
        draws = draw()
        metrics = agent.update(batch, draws)
        for s, their in enumerate(theirs):
            losses = their.update(one_seed(batch, s), *(x[s].double().numpy() for x in draws))
            assert_losses(metrics, s, losses, tolerance)
    for s, their in enumerate(theirs):
        assert_networks(parts(agent, s), their.networks(), tolerance)
    return theirs


class Tensors:
    """A transcription that takes the draws as arrays."""

    def update(self, batch, *draws):
        return super().update(batch, *map(torch.from_numpy, draws))


class FQL(Tensors, reference_fql.FQL):
    pass


class IFQL(Tensors, reference_fql.IFQL):
    pass


@pytest.mark.parametrize("own", [{}, {"q_agg": "min", "normalize_q": True, "alpha": 0.5}])
def test_fql_equals_the_equations(own, float64):
    agent = make(**own)
    scramble(agent.critic, agent.flow, agent.policy, agent.target)

    def draw() -> fql.Draws:
        return fql.Draws(normal(B, A), normal(B, A), 1.5 * normal(B, A), times())

    compared(agent, FQL, draw, 1e-7)  # Adam's epsilon beside half a gradient


def test_ifql_equals_the_equations_and_acts_by_the_best(float64):
    agent = make(ifql)
    scramble(agent.critic, agent.value, agent.flow, agent.target)
    theirs = compared(agent, IFQL, lambda: ifql.Draws(normal(B, A), times()), 1e-7)
    states, noise = normal(4, O), normal(4, 5, A)
    actions = agent.explore(states, noise)
    for s, i in np.ndindex(SEEDS, 4):
        expected = theirs[s].best(states[s, i].numpy(), noise[s, i].numpy())
        np.testing.assert_allclose(actions[s, i].numpy(), expected, atol=1e-6)


def linear(**own) -> fql.FQL:
    """Q_1 = a, Q_2 = 3 a, the same targets; the flow's velocity is 1 and mu(s, z) = 2 z."""
    agent = make(fql, 1, 1, 1, hidden_layers=0, **own)
    for critics in (agent.critic, agent.target):
        set_linear(critics, [[0.0, 1.0], [0.0, 3.0]], [0.0, 0.0])
    set_linear(agent.flow, [[0.0, 0.0, 0.0]], [1.0])
    set_linear(agent.policy, [[0.0, 2.0]], [0.0])
    return agent


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values).view(1, -1, 1)


@pytest.mark.parametrize(("q_agg", "next_q"), [("mean", (0.8, 2.0)), ("min", (0.4, 1.0))])
def test_critic_loss_by_hand(q_agg, next_q):
    """Noise 0.2 and 0.7 make 0.4, and 1.4 that is clipped to 1; the second step is the last."""
    batch = tiny(s=[[0], [0]], a=[[0.5], [-0.5]], r=[1, 2], d=[0, 1])
    loss, _ = linear(q_agg=q_agg).critic_loss(batch, column(0.2, 0.7))
    y = (1 + 0.9 * next_q[0], 2.0)
    errors = [(0.5 - y[0]) ** 2, (1.5 - y[0]) ** 2, (-0.5 - y[1]) ** 2, (-1.5 - y[1]) ** 2]
    assert loss.tolist() == pytest.approx([sum(errors) / 4])


@pytest.mark.parametrize(("normalize_q", "scale"), [(False, 1.0), (True, 1 / 1.4)])
def test_policy_loss_by_hand(normalize_q, scale):
    """Noise 0.2 and -0.7: mu 0.4 and -1.4, the flow 1.2 -> 1 and 0.3; mean Q 2 a with a clipped."""
    agent = linear(alpha=10.0, normalize_q=normalize_q)
    batch = tiny(s=[[0], [0]], a=[[0], [0]])
    loss, metrics = agent.policy_loss(batch, column(0.2, -0.7))
    distance = ((0.4 - 1) ** 2 + (-1.4 - 0.3) ** 2) / 2
    assert metrics["distillation"].tolist() == pytest.approx([distance])
    assert loss.tolist() == pytest.approx([10 * distance - scale * (0.8 - 2) / 2])


def test_flow_loss_by_hand():
    """The velocity is 1; from 0.5 to 1 it should be 0.5, from 0 to -1 it should be -1."""
    batch = tiny(s=[[0], [0]], a=[[1], [-1]])
    loss = linear().flow_loss(batch, column(0.5, 0.0), column(0.3, 0.9))
    assert loss.tolist() == pytest.approx([(0.5**2 + 2**2) / 2])


def test_the_policys_gradient_stays_out_of_critic_and_flow():
    agent = make()
    batch = make_batches(1)[0]
    loss, _ = agent.policy_loss(batch, normal(B, A).float())
    learned = [*agent.policy.parameters(), *agent.flow.parameters()]
    grads = torch.autograd.grad(loss.sum(), learned, allow_unused=True)
    half = len(list(agent.policy.parameters()))
    assert all(g is not None and g.any() for g in grads[:half])
    assert all(g is None for g in grads[half:])
    assert not {id(p) for p in agent.critic.parameters()} & {id(p) for p in learned}


def test_at_a_large_alpha_the_policy_becomes_the_flow():
    """In a bandit of two modes, -0.7 and 0.7, a large alpha ends at Euler's actions."""
    agent = make(fql, 1, 1, 1, hidden_width=32, lr=3e-3, alpha=1e4, flow_steps=5)
    rng = torch.Generator().manual_seed(0)
    for _ in range(300):
        a = 0.7 * torch.randint(2, (1, 64, 1), generator=rng).float() * 2 - 0.7
        start, noise, next_noise = torch.randn(3, 1, 64, 1, generator=rng)
        t = torch.rand(1, 64, 1, generator=rng)
        batch = tiny(s=np.zeros((64, 1)), a=a[0].numpy(), d=[1] * 64)
        agent.update(batch, fql.Draws(next_noise, start, noise, t))
    noise = torch.linspace(-2, 2, 41).view(1, 41, 1)
    states = torch.zeros(1, 41, 1)
    made = agent.explore(states, noise)
    cloned = flow.euler(lambda x, t: agent.flow(states, x, t), noise, 5).clamp(-1, 1)
    assert (made - cloned).abs().mean() < 0.2  # a policy that ignores its noise: 0.6
    modes = made.flatten()[made.flatten().abs() > 0.4]
    assert len(modes) > 25 and (modes < 0).any() and (modes > 0).any()


def test_one_sample_of_ifql_is_the_cloning_flow():
    agent = make(ifql)
    states, noise = normal(4, O).float(), normal(4, 1, A).float()
    assert torch.equal(agent.explore(states, noise), agent.propose(states, noise[:, :, 0]))


def test_more_samples_never_have_a_lower_q():
    agent = make(ifql)
    states, noise = normal(4, O).float(), normal(4, 8, A).float()
    q = [agent.critic(states, agent.explore(states, noise[:, :, :k])).amin(1) for k in (1, 2, 8)]
    gains = torch.stack([q[1] - q[0], q[2] - q[1]])
    assert (gains > -1e-5).all() and (gains > 1e-2).any()


@pytest.mark.parametrize(("kind", "shape"), [(fql, (A,)), (ifql, (2, A))])
def test_an_evaluation_draws_anew_at_every_step_and_again_for_the_same_seed(kind, shape):
    def policy(seeds):
        own = {} if kind is fql else {"samples": 2}
        spec = Spec(O, A, generators(), identities=seeds)
        return kind.parts(make(kind, **own), spec)["policy"]

    states = torch.rand(2, 3, O)
    one, other, swapped = policy([0, 1]), policy([0, 1]), policy([1, 0])
    for each in (one, other, swapped):
        each.begin(2, 3)
    first = one(states)
    assert first.shape == (2, 3, A) and torch.equal(first, other(states))
    assert not torch.equal(first, one(states)) and not torch.equal(first, swapped(states))
    assert one._shape == shape


def test_first_weights_are_glorots():
    cfg = cell("fql", "ogbench/scene-play-singletask-v0")
    agent = fql.FQL(cfg.algo, Spec(28, 5, generators(1)))
    for network in (agent.critic, agent.flow, agent.policy):
        assert len(network.layers) == 5
        for layer in network.layers:
            bound = (6 / sum(layer.weight.shape[-2:])) ** 0.5
            assert 0.98 * bound < layer.weight.abs().max() <= bound
            assert not layer.bias.any()
    assert [norm.eps for norm in agent.critic.norms] == [1e-6] * 4
    for plain in (agent.flow, agent.policy):
        assert all(isinstance(norm, torch.nn.Identity) for norm in plain.norms)


COMMANDS = [  # README of seohongpark/fql at 719d044: alpha, discount, q_agg; alpha and q_agg of fine-tuning
    ("ogbench/antmaze-large-navigate-singletask", 10, 0.99, "min", None),
    ("ogbench/antmaze-giant-navigate-singletask", 10, 0.995, "min", None),
    ("ogbench/humanoidmaze-medium-navigate-singletask", 30, 0.995, "mean", 100),
    ("ogbench/humanoidmaze-large-navigate-singletask", 30, 0.995, "mean", None),
    ("ogbench/antsoccer-arena-navigate-singletask", 10, 0.995, "mean", 30),
    ("ogbench/cube-single-play-singletask", 300, 0.99, "mean", None),
    ("ogbench/cube-double-play-singletask", 300, 0.99, "mean", 300),
    ("ogbench/scene-play-singletask", 300, 0.99, "mean", 300),
    ("ogbench/puzzle-3x3-play-singletask", 1000, 0.99, "mean", None),
    ("ogbench/puzzle-4x4-play-singletask", 1000, 0.99, "mean", 1000),
    *((f"d4rl/antmaze-{maze}", 10, 0.99, "mean", 10) for maze in ("umaze", "umaze-diverse")),
    *((f"d4rl/antmaze-medium-{kind}", 10, 0.99, "mean", 10) for kind in ("play", "diverse")),
    *((f"d4rl/antmaze-large-{kind}", 3, 0.99, "mean", 3) for kind in ("play", "diverse")),
    ("d4rl/pen-human", 10000, 0.99, "min", None),
    ("d4rl/pen-cloned", 10000, 0.99, "min", 1000),
    ("d4rl/pen-expert", 3000, 0.99, "min", None),
    ("d4rl/door-human", 30000, 0.99, "min", None),
    ("d4rl/door-cloned", 30000, 0.99, "min", 1000),
    ("d4rl/door-expert", 30000, 0.99, "min", None),
    ("d4rl/hammer-human", 30000, 0.99, "min", None),
    ("d4rl/hammer-cloned", 10000, 0.99, "min", 1000),
    ("d4rl/hammer-expert", 30000, 0.99, "min", None),
    ("d4rl/relocate-human", 10000, 0.99, "min", None),
    ("d4rl/relocate-cloned", 30000, 0.99, "min", 10000),
    ("d4rl/relocate-expert", 30000, 0.99, "min", None),
]


@pytest.mark.parametrize(("name", "alpha", "discount", "q_agg", "online"), COMMANDS)
def test_the_table_has_the_published_commands(name, alpha, discount, q_agg, online):
    version = {"ogb": "v0", "d4r": "v2" if "antmaze" in name else "v1"}[name[:3]]
    suffixes = ("", "-task3") if name.startswith("ogbench") else ("",)
    for suffix in suffixes:
        cfg = cell("fql", f"{name}{suffix}-{version}")
        algo = cfg.algo
        assert (algo.alpha, algo.discount, algo.q_agg) == (alpha, discount, q_agg)
        assert algo.data.reward_shift == (-1.0 if name.startswith("d4rl/antmaze") else 0.0)
        assert cfg.steps == (1_000_000 if name.startswith("ogbench") else 500_000)
        assert cell("ifql", f"{name}{suffix}-{version}").algo.discount == discount
    if online is not None:
        cfg = cell("fql_finetune", f"{name}-{version}")
        algo = cfg.algo
        assert (algo.alpha, algo.discount, algo.q_agg) == (online, discount, q_agg)
        assert (cfg.steps, algo.online.pretrain_steps) == (2_000_000, 1_000_000)
        assert (algo.phase, algo.online.offline_ratio) == ("both", None)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (fql, {"q_agg": "max"}),
        (fql, {"flow_steps": 0}),
        (fql, {"alpha": -1.0}),
        (ifql, {"expectile": 1.0}),
        (ifql, {"samples": 0}),
    ],
)
def test_wrong_settings_raise(kind, wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(CorerlError, match=rf"algo\.{name}={value}"):
        kind.Config(**wrong)
