"""Goal agents: equations of OGBench's code, losses by hand, and what each must come to on exact worlds."""

import numpy as np
import pytest
import reference_goals
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
    net,
    scramble,
    twins,
)
from small import cell
from wording import refused

from corerl.algos import crl, gcbc, gciql, gcivl, hiql, qrl
from corerl.buffers.goals import GoalBatch, SubgoalBatch
from corerl.nn.learner import Spec

SMALL = {"hidden_width": WIDTH, "hidden_layers": 2, "discount": 0.9}


def make(kind, observations: int = O, actions: int = A, seeds: int = SEEDS, **own):
    spec = Spec(2 * observations, actions, generators(seeds), facts={"goal_dim": observations})
    return kind.build(kind.Config(**SMALL | own), spec)


def make_batches(count: int, kind: type = GoalBatch) -> list:
    """Other data for each seed; a fifth of the rows at their goal, some actions on the bounds."""
    rng = np.random.default_rng(0)

    def batch():
        actions = rng.uniform(-1.2, 1.2, (SEEDS, B, A)).clip(-1, 1)
        states = rng.normal(size=(len(kind._fields), SEEDS, B, O))
        done = (rng.random((SEEDS, B)) < 0.2).astype(float)
        fields = dict(zip(kind._fields, states, strict=True))
        fields |= {"actions": actions, "rewards": done - 1, "terminated": done}
        return kind(**{name: as_tensor(x) for name, x in fields.items()})

    return [batch() for _ in range(count)]


def parts(agent, seed: int) -> tuple:
    """The networks of a seed in the order of the transcription's."""
    one = lambda *modules: [net(module, seed) for module in modules]  # noqa: E731
    if isinstance(agent, gcbc.GCBC):
        return tuple(one(agent.policy))
    if isinstance(agent, gcivl.GCIVL):
        return twins(agent.value, seed), *one(agent.policy), twins(agent.target, seed)
    if isinstance(agent, gciql.GCIQL):
        own = one(agent.value, agent.policy)
        return twins(agent.critic, seed), *own, twins(agent.target, seed)
    if isinstance(agent, crl.CRL):
        found = [
            twins(agent.critic.first, seed),
            twins(agent.critic.goal, seed),
            *one(agent.policy),
        ]
        if agent.value is not None:
            found += [net(agent.value.first, seed, 0), net(agent.value.goal, seed, 0)]
        return tuple(found)
    if isinstance(agent, qrl.QRL):
        dynamics = [agent.dynamics] if agent.dynamics else []
        return tuple(one(agent.distance, agent.log_lambda, *dynamics, agent.policy))
    found = (net(agent.phi, seed), twins(agent.critics, seed), *one(agent.high, agent.low))
    return *found, twins(agent.target_critics, seed)


CASES = {
    "gcbc": (gcbc, {}),
    "gcivl": (gcivl, {"alpha": 0.5}),
    "gciql": (gciql, {}),
    "gciql awr": (gciql, {"actor_loss": "awr", "alpha": 2.0}),
    "crl": (crl, {"latent_dim": 6}),
    "crl awr": (crl, {"latent_dim": 6, "actor_loss": "awr", "alpha": 2.0}),
    "crl floor": (crl, {"latent_dim": 6, "log_floor": 0.8}),
    "crl awr floor": (
        crl,
        {"latent_dim": 6, "actor_loss": "awr", "alpha": 2.0, "log_floor": 0.8},
    ),
    "qrl": (qrl, {"latent_dim": 16, "eps": 0.3}),
    "qrl awr": (qrl, {"latent_dim": 16, "actor_loss": "awr", "alpha": 0.5}),
    "qrl mrn": (qrl, {"latent_dim": 6, "quasimetric": "mrn", "alpha": 0.1}),
    "hiql": (hiql, {"rep_dim": 4, "high_alpha": 0.5, "low_alpha": 0.7}),
}


@pytest.mark.parametrize("case", CASES)
def test_six_updates_equal_the_equations(case, float64):
    kind, own = CASES[case]
    agent = make(kind, **own)
    scramble(*(part for part in vars(agent).values() if isinstance(part, torch.nn.Module)))
    cls = getattr(reference_goals, kind.__name__.rpartition(".")[2].upper())
    theirs = [cls(agent.cfg if kind is not gcbc else None, *parts(agent, s)) for s in range(SEEDS)]
    for batch in make_batches(6, SubgoalBatch if kind is hiql else GoalBatch):
        metrics = agent.update(batch)
        for s, their in enumerate(theirs):
            losses = their.update([x[s].double().numpy() for x in batch])
            assert_losses(metrics, s, losses, 1e-7)
    for s, their in enumerate(theirs):
        assert_networks(parts(agent, s), their.networks(), 1e-7)


# Losses by hand. Networks are linear, of one state, goal and action feature.


def row(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32).view(1, -1, 1)


def hand_batch(**own) -> GoalBatch:
    """Two rows at 0 and 1 that move by 1 towards the goal 2, one of them there."""
    fields = {
        "observations": row(0, 1),
        "actions": row(1, 0.5),
        "next_observations": row(1, 2),
        "value_goals": row(2, 1),
        "rewards": torch.tensor([[-1.0, 0.0]]),
        "terminated": torch.tensor([[0.0, 1.0]]),
        "actor_goals": row(2, 2),
    }
    return GoalBatch(**(fields | own))


def linear(kind, **own):
    return make(kind, 1, 1, 1, hidden_layers=0, **own)


@torch.no_grad()
def fill(mlp, *weights: list[float]) -> None:
    """Sets the only layer of each copy, without a bias."""
    mlp.layers[0].weight.copy_(torch.tensor(weights).view_as(mlp.layers[0].weight))
    mlp.layers[0].bias.zero_()


def test_gcbc_by_hand():
    """The mean is s + g / 2 = 1 and 2: errors 0 and 1.5."""
    agent = linear(gcbc)
    fill(agent.policy, [1.0, 0.5])
    loss, _ = agent.loss(hand_batch())
    assert loss.item() == pytest.approx(1.5**2 / 4 + 0.5 * np.log(2 * np.pi))


def test_gcivl_by_hand():
    """V_1 = s - g, V_2 = 2 (s - g), and targets alike.

    Row 0: V' = -1 and -2 at s', so y = -1.9 and -2.8, and A = -2.8 + 3 = 0.2. Row 1 is at its goal 1: y = 0
    and A = 0. Weights are the expectile.
    """
    agent = linear(gcivl, expectile=0.8)
    for value in (agent.value, agent.target):
        fill(value, [1.0, -1.0], [2.0, -2.0])
    loss, _ = gcivl.value_loss(agent.value, agent.target, hand_batch(), agent.cfg)
    errors = (-1.9 + 2) ** 2 + (-2.8 + 4) ** 2
    assert loss.item() == pytest.approx(0.8 * errors / 2)
    falling = hand_batch(next_observations=row(-1, 1))  # y = -3.7 and -6.4: A = -6.4 + 3
    loss, _ = gcivl.value_loss(agent.value, agent.target, falling, agent.cfg)
    assert loss.item() == pytest.approx(0.2 * ((-3.7 + 2) ** 2 + (-6.4 + 4) ** 2) / 2)


@pytest.mark.parametrize(("alpha", "weight"), [(0.0, 1.0), (2.0, np.exp(3.0)), (9.0, 100.0)])
def test_the_weight_of_a_sample_by_hand(alpha, weight):
    """Each step gains 1 by V_1 and 2 by V_2, 1.5 on average; the weight's limit is 100."""
    agent = linear(gcivl, alpha=alpha)
    fill(agent.value, [1.0, -1.0], [2.0, -2.0])
    fill(agent.policy, [0.0, 0.0])
    loss, metrics = agent.policy_loss(hand_batch())
    densities = 0.5 * np.array([1.0, 0.25]) + 0.5 * np.log(2 * np.pi)
    assert loss.item() == pytest.approx(weight * densities.mean(), rel=1e-5)
    assert metrics["advantage"].item() == pytest.approx(1.5)


def test_ddpg_with_cloning_by_hand():
    """The mean 2 g = 4 is clipped to 1 for the critics, Q_1 = 3 a and Q_2 = a, not for the cloning."""
    agent = linear(gciql, alpha=0.1)
    fill(agent.critic, [0.0, 0.0, 3.0], [0.0, 0.0, 1.0])
    fill(agent.policy, [0.0, 2.0])
    loss, metrics = agent.policy_loss(hand_batch())
    cloning = 0.5 * (3**2 + 3.5**2) / 2 + 0.5 * np.log(2 * np.pi)
    assert loss.item() == pytest.approx(-1 / (1 + 1e-6) + 0.1 * cloning)
    assert metrics["policy_q"].item() == 1.0


def test_the_push_and_the_price_of_a_step_by_hand():
    """With MRN of one symmetric and one other number: phi(s) = (s, 2 s).

    From s to g is |s - g| + max(2 s - 2 g, 0): 2 and 0. Each step of +1 measures 1, which is allowed.
    """
    agent = linear(qrl, quasimetric="mrn", latent_dim=2, eps=0.05)
    fill(agent.distance.embed, [1.0, 2.0])
    fill(agent.dynamics, [0.0, 0.0, 1.0, 0, 0, 2.0])
    with torch.no_grad():
        agent.dynamics.layers[0].weight.copy_(torch.tensor([[[0.0, 0], [0, 0], [1.0, 2.0]]]))
        agent.log_lambda.value.fill_(np.log(3.0))
    loss, metrics = agent.distance_loss(hand_batch())
    push = 100 * np.log1p(np.exp(5 - np.array([2.0, 1e-6]) / 100)).mean()
    # Row 0 is foreseen; row 1 at 1.5 instead of 2: 0.5 + 1 there, 0.5 back.
    dynamics = (2 * 1e-6 + 0.5 + 0.5 + 1) / 2 / 2
    assert metrics["dynamics_loss"].item() == pytest.approx(dynamics, rel=1e-4)
    assert loss.item() == pytest.approx(push + 3 * 0.05 + dynamics, rel=1e-5)


def test_subgoals_are_imitated_on_the_sphere():
    agent = make(hiql, rep_dim=4)
    point = agent.phi(torch.randn(SEEDS, B, 2 * O))
    torch.testing.assert_close(point.norm(dim=-1), torch.full((SEEDS, B), 2.0))
    observations = torch.randn(SEEDS, 5, 2 * O)
    subgoal = hiql.on_sphere(agent.high(observations))
    low = agent.low(torch.cat([observations[..., :O], subgoal], -1))
    torch.testing.assert_close(agent.act(observations), low.clamp(-1, 1))


# What each must come to, on worlds whose solution is known.

RING, GAMMA = 7, 0.9


def ring_distances() -> torch.Tensor:
    """Steps forwards from each state to each, `(s, g)`."""
    states = torch.arange(RING)
    return (states[None] - states[:, None]) % RING


def on_table(table: torch.Tensor):
    """A value of one-hot states and goals, `(1, 2, B)`, from a table `(2, s, g)`."""
    return lambda s, g: torch.einsum("kij,sbi,sbj->skb", table, s, g)


def ring_batch(moves: tuple[int, ...]) -> GoalBatch:
    """Every state, goal and move, with success where the state is the goal."""
    s, g, m = (
        x.flatten()
        for x in torch.meshgrid(
            torch.arange(RING), torch.arange(RING), torch.tensor(moves), indexing="ij"
        )
    )
    one = lambda x: torch.nn.functional.one_hot(x, RING).to(torch.get_default_dtype())[None]  # noqa: E731
    done = (s == g).to(torch.get_default_dtype())[None]
    still = torch.zeros(1, len(s), 1, dtype=done.dtype)
    return GoalBatch(one(s), still, one((s + m) % RING), one(g), done - 1, done, one(g))


def gradient(table: torch.Tensor, moves: tuple[int, ...], expectile: float) -> torch.Tensor:
    """The gradient of GCIVL's value loss at a table that is its own target, `(2, s, g)`."""
    online = table.clone().requires_grad_()
    cfg = gcivl.Config(discount=GAMMA, expectile=expectile)
    loss, _ = gcivl.value_loss(on_table(online), on_table(table), ring_batch(moves), cfg)
    return torch.autograd.grad(loss.sum(), online)[0]


def test_gcivl_comes_to_the_shortest_ways(float64):
    """Towards the highest expectile, from recordings in both directions: -(1 - gamma^d) / (1 - gamma)."""
    forwards = ring_distances()
    d = torch.minimum(forwards, RING - forwards).double()
    shortest = (-(1 - GAMMA**d) / (1 - GAMMA)).expand(2, -1, -1)
    assert gradient(shortest, (1, -1), 1 - 1e-9).abs().max() < 1e-9
    assert gradient(shortest, (1, -1), 0.7).abs().max() > 1e-2  # an average is no shortest way
    assert gradient(shortest - 0.1, (1, -1), 1 - 1e-9).abs().max() > 1e-3


def test_gcivl_at_one_half_is_the_behaviours_value(float64):
    """The random walk on the ring, by a linear solve for each goal."""
    values = torch.zeros(RING, RING, dtype=torch.float64)
    for goal in range(RING):
        walk = torch.zeros(RING, RING, dtype=torch.float64)
        for state in set(range(RING)) - {goal}:
            walk[state, (state + 1) % RING] += 0.5
            walk[state, (state - 1) % RING] += 0.5
        cost = -torch.ones(RING, dtype=torch.float64)
        cost[goal] = 0
        values[:, goal] = torch.linalg.solve(torch.eye(RING) - GAMMA * walk, cost)
    assert gradient(values.expand(2, -1, -1), (1, -1), 0.5).abs().max() < 1e-9


def test_the_classifier_comes_to_the_ratio_of_laws(float64):
    """Pairs of a batch are counted: the best logit is log(M / p) - log(B - 1), but for 1 / B."""
    rng = np.random.default_rng(0)
    counts = rng.integers(1, 9, (3, 4))
    first, goal = np.repeat(np.indices((3, 4)).reshape(2, -1), counts.flatten(), 1)
    size = counts.sum()
    chance = counts.sum(1)[:, None] * counts.sum(0)
    table = torch.tensor(np.log(counts / (chance - counts)), requires_grad=True)

    class Known:
        def embedded(self, first, goals):
            return table[first][:, None], torch.nn.functional.one_hot(goals, 4).double()[:, None]

    pairs = (torch.tensor(x)[None] for x in (first, goal))
    loss, _ = crl.contrast(Known(), *pairs)
    assert torch.autograd.grad(loss.sum(), table)[0].abs().max() < 1e-12
    ratio = counts * size / chance  # M(g | x) / p(g)
    np.testing.assert_allclose(table.detach(), np.log(ratio) - np.log(size - 1), atol=0.15)


@pytest.mark.parametrize(
    ("kind", "steps", "apart"),
    [("mrn", 1000, None), pytest.param("iqe", 4000, 0.15, marks=pytest.mark.slow)],
)
def test_qrl_measures_ways_in_steps_that_are_a_little_too_long(kind, steps, apart):
    """A directed ring: each step comes to 1 + sqrt(eps), and with IQE a way to as many of them."""
    own = {"hidden_layers": 0, "latent_dim": 256, "quasimetric": kind, "lr": 0.01}
    agent = make(qrl, RING, 1, 1, **own)
    batch, lengths = ring_batch((1,)), []
    for _ in range(steps):
        grads, metrics = agent._distance_step.gradients(batch)
        agent._distance_step.apply(grads)
        lengths.append(metrics["step_length"].item())
    length = 1 + agent.cfg.eps**0.5
    assert np.mean(lengths[-250:]) == pytest.approx(length, abs=0.02)  # lambda lets it swing
    if apart:
        phi = agent.distance.embed(torch.eye(RING)[None])
        here, there = (
            phi[:, x.flatten()] for x in torch.cartesian_prod(*[torch.arange(RING)] * 2).T
        )
        found = agent.distance(here, there).view(RING, RING).detach()
        torch.testing.assert_close(found, length * ring_distances(), rtol=apart, atol=1e-6)


def test_a_subgoal_tells_directions_apart_that_a_step_does_not():
    """The reason of HIQL, 30 steps from the goal at 0.99: 25 steps are worth 21.13, one is 0.75."""
    agent = make(hiql, 1, 1, 1, rep_dim=2)
    agent.values = lambda s, g: (-(1 - 0.99 ** (g - s).abs()) / 0.01).mT.expand(1, 2, -1)
    gains = [agent._gain(row(0), row(k), row(30)).item() for k in (25, 1)]
    assert gains == pytest.approx([21.13, 0.75], abs=0.01)


# What is refused.


@pytest.mark.parametrize("kind", [qrl, hiql])
def test_some_agents_need_whole_states_as_goals(kind):
    with refused("algo.goals.columns"):
        kind.build(kind.Config(), Spec(3, 1, generators(1), facts={"goal_dim": 1}))


# The tables: rows of the authors' impls/hyperparameters.sh.

COMMANDS = [
    ("gcivl", "pointmaze-medium-navigate", {"alpha": 10.0, "discount": 0.99, "random": 0.0}),
    ("gcivl", "antmaze-giant-stitch", {"alpha": 10.0, "discount": 0.995, "random": 0.5}),
    ("gcivl", "antmaze-large-explore", {"alpha": 10.0, "discount": 0.99, "random": 1.0}),
    ("gciql", "pointmaze-giant-navigate", {"alpha": 0.003, "discount": 0.995, "random": 0.0}),
    ("gciql", "antmaze-teleport-explore", {"alpha": 0.01, "discount": 0.99, "random": 1.0}),
    ("gciql", "humanoidmaze-large-stitch", {"alpha": 0.1, "discount": 0.995, "random": 0.5}),
    ("gciql", "antsoccer-arena-stitch", {"alpha": 0.1, "discount": 0.99, "random": 0.5}),
    ("gciql", "scene-noisy", {"alpha": 0.03, "discount": 0.99, "random": 0.0}),
    ("qrl", "pointmaze-large-stitch", {"alpha": 0.0003, "discount": 0.99, "random": 0.5}),
    ("qrl", "antsoccer-medium-navigate", {"alpha": 0.003, "discount": 0.99, "random": 0.0}),
    ("qrl", "humanoidmaze-medium-navigate", {"alpha": 0.001, "discount": 0.995, "random": 0.0}),
    ("qrl", "puzzle-4x6-play", {"alpha": 0.3, "discount": 0.99, "random": 0.0}),
    ("crl", "antmaze-giant-navigate", {"alpha": 0.1, "discount": 0.995, "random": 0.0}),
    ("crl", "antmaze-medium-explore", {"alpha": 0.003, "discount": 0.99, "random": 1.0}),
    ("crl", "humanoidmaze-giant-stitch", {"alpha": 0.1, "discount": 0.995, "random": 0.5}),
    ("crl", "cube-single-play", {"alpha": 3.0, "discount": 0.99, "random": 0.0}),
    ("hiql", "antmaze-large-explore", {"high_alpha": 10.0, "low_alpha": 10.0, "subgoal_steps": 25}),
    (
        "hiql",
        "humanoidmaze-medium-stitch",
        {"high_alpha": 3.0, "subgoal_steps": 100, "random": 0.5},
    ),
    ("hiql", "cube-double-noisy", {"low_alpha": 3.0, "subgoal_steps": 10, "discount": 0.99}),
    ("gcbc", "antmaze-medium-stitch", {"random": 0.0}),
]


@pytest.mark.parametrize(("name", "dataset", "expected"), COMMANDS)
def test_tables_are_the_authors_commands(name, dataset, expected):
    cfg = cell(name, f"ogbench/{dataset}-v0")
    found = {"random": cfg.algo.goals.actor_p_randomgoal} | vars(cfg.algo)
    assert {key: found[key] for key in expected} == expected
    assert (cfg.steps, cfg.eval.every, cfg.eval.episodes) == (1_000_000, 100_000, 250)
    assert (cfg.algo.batch_size, cfg.algo.hidden_layers, cfg.algo.hidden_width) == (1024, 3, 512)
