"""f-DVL against a transcription, by hand, and at the values that minimise its losses."""

import math

import numpy as np
import pytest
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
from reference_soft import adam, leaves, numbers, polyak, q, set_grads, tensor
from torch.distributions import Normal

from corerl.algos import dvl
from corerl.algos.dvl import DVL, Config
from corerl.buffers.replay import Batch
from corerl.nn.learner import Spec

STEPS = 8  # of the cosine, so that five updates go through most of it
SMALL = {"hidden_width": WIDTH, "polyak": 0.1, "discount": 0.9}
VERSIONS = {
    "gym": {},
    "chi2 below 1": {"loss_temperature": 0.7, "random_actions": 3},
    "chi2_exact": {"divergence": "chi2_exact", "loss_temperature": 0.7},
    "antmaze": {
        "divergence": "tv",
        "loss_temperature": 0.8,
        "random_actions": 0,
        "beta": 10.0,
        "cosine": False,
    },
    "adroit": {"divergence": "kl", "loss_temperature": 8.0, "beta": 0.5, "dropout": 0.25},
    "kl that is clipped": {"divergence": "kl", "loss_temperature": 0.1, "clip": 0.5},
    "critics beyond the square": {"huber": 0.3},
    "recoil": {"imitation": True, "divergence": "kl", "random_actions": 0, "expert_value": 5.0},
    "V without LayerNorm": {"value_layer_norm": False, "max_weight": 1.1},
}


def make(observations: int = O, actions: int = A, seeds: int = SEEDS, **more) -> DVL:
    return DVL(Config(**SMALL | more), Spec(observations, actions, generators(seeds), steps=STEPS))


def parts(agent: DVL, seed: int) -> tuple:
    first = net(agent.value, seed), net(agent.policy, seed)
    return *first, twins(agent.critic, seed), twins(agent.target, seed)


class Reference:
    """One seed, float64: g by its definition as a largest number where it has one, gradients by autograd."""

    def __init__(self, cfg, value, policy, critics, targets):
        self.c, self.count = cfg, 0
        self.value, self.policy = leaves(value), leaves(policy)
        self.critics, self.targets = ([leaves(x) for x in nets] for nets in (critics, targets))
        self.value_optimizer = adam(cfg.lr, self.value)
        self.policy_optimizer = adam(cfg.lr, self.policy)
        self.critic_optimizer = adam(cfg.lr, *self.critics)

    def networks(self) -> tuple:
        critics, targets = ([numbers(n) for n in nets] for nets in (self.critics, self.targets))
        return numbers(self.value), numbers(self.policy), critics, targets

    def v(self, s):
        for i in range(3):
            s = s @ self.value[f"layers.{i}.weight"] + self.value[f"layers.{i}.bias"]
            if i < 2:
                if self.c.value_layer_norm:
                    mean, spread = s.mean(1, keepdim=True), s.var(1, keepdim=True, unbiased=False)
                    unit = (s - mean) / (spread + 1e-6).sqrt()
                    s = unit * self.value[f"norms.{i}.weight"] + self.value[f"norms.{i}.bias"]
                s = torch.relu(s)
        return s[:, 0]

    def loss(self, x):
        lam = self.c.loss_temperature
        if self.c.divergence == "kl":
            z = torch.where(x / lam > self.c.clip, self.c.clip, x / lam)
            scale = math.exp(-max(z.max().item(), -1.0))
            return (z.exp() - z - 1) * scale
        g = {
            "tv": torch.where(x > 0, x, 0 * x),
            "chi2": torch.where((x > 0) | (x < -4), x * (1 + x / 4), 0 * x),
            "chi2_exact": torch.where(x > -2, (1 + x / 2) * x - (x / 2) ** 2, -1 + 0 * x),
        }[self.c.divergence]
        return lam * g - (1 - lam) * x

    def low(self, s, a):
        return torch.minimum(*(q(n, s, a) for n in self.targets)).detach()

    def update(self, batch, draws, uniforms, expert=None) -> dict:
        c = self.c
        s, a, r, s_next, d = (tensor(x) for x in batch[:5])
        states, actions = [s], [a]
        for u in [] if draws is None else draws:
            states, actions = [*states, s], [*actions, -1 + 2 * u]
        states, actions = torch.cat(states), torch.cat(actions)
        value_loss = self.loss(self.low(states, actions) - self.v(states)).mean()
        set_grads(self.value_optimizer, value_loss)
        self.value_optimizer.step()

        weight = (c.beta * (self.low(s, a) - self.v(s).detach())).exp().clamp(max=c.max_weight)
        policy_loss = -(weight * self.log_prob(s, a, uniforms)).mean()
        y = (r + c.discount * (1 - d) * self.v(s_next)).detach()
        errors = [(q(n, s, a) - y).abs() for n in self.critics]
        squares = [torch.where(e < c.huber, e**2 / 2, c.huber * e - c.huber**2 / 2) for e in errors]
        critic_loss = sum(e.mean() for e in squares)
        if c.imitation:
            critic_loss = self.imitation_loss(s, a, s_next, d, *(tensor(x) for x in expert[:2]))
        set_grads(self.policy_optimizer, policy_loss)
        set_grads(self.critic_optimizer, critic_loss)
        for group in self.policy_optimizer.param_groups if c.cosine else []:
            group["lr"] = c.lr * (1 + math.cos(math.pi * self.count / STEPS)) / 2
        self.policy_optimizer.step()
        self.critic_optimizer.step()
        for target, online in zip(self.targets, self.critics, strict=True):
            polyak(target, online, c.polyak)
        self.count += 1
        losses = {"value_loss": value_loss, "policy_loss": policy_loss, "critic_loss": critic_loss}
        return {name: loss.item() for name, loss in losses.items()}

    def imitation_loss(self, s, a, s_next, d, expert_s, expert_a):
        """A reward of -M (1 - discount) for ever is worth -M, so that a terminal state goes on like this."""
        c, losses = self.c, []
        for row, end in enumerate(d):
            floor = -(1 - c.discount) * c.expert_value
            ahead = -c.expert_value if end else self.v(s_next[row : row + 1]).detach()[0]
            for n in self.critics:
                data = q(n, s[row : row + 1], a[row : row + 1])[0] - floor - c.discount * ahead
                shown = q(n, expert_s[row : row + 1], expert_a[row : row + 1])[0] - c.expert_value
                losses.append(data**2 / 2 + shown**2 / 2)
        return sum(losses) / len(d)

    def log_prob(self, s, a, uniforms):
        for i in range(3):
            s = s @ self.policy[f"body.layers.{i}.weight"] + self.policy[f"body.layers.{i}.bias"]
            if i < 2:
                s = torch.relu(s)
                if uniforms is not None:
                    s = s * (uniforms[i] >= self.c.dropout) / (1 - self.c.dropout)
        std = self.policy["log_std"].clamp(self.c.log_std_min, self.c.log_std_max).exp()
        return Normal(torch.tanh(s), std.expand_as(s)).log_prob(a).sum(1)


@pytest.mark.parametrize("version", VERSIONS.values(), ids=VERSIONS)
def test_five_updates_equal_the_equations(version, tolerance):
    agent = make(**version)
    scramble(agent.value, agent.policy, agent.critic, agent.target)
    theirs = [Reference(agent.cfg, *parts(agent, s)) for s in range(SEEDS)]
    rng, cfg = np.random.default_rng(3), agent.cfg
    for batch, expert in zip(make_batches(5), make_batches(5)[::-1], strict=True):
        draws, uniforms = (
            as_tensor(rng.random((SEEDS, *shape))) if wanted else None
            for wanted, shape in (
                (cfg.random_actions, (cfg.random_actions, B, A)),
                (cfg.dropout, (cfg.hidden_layers, B, WIDTH)),
            )
        )
        metrics = agent.update(batch, draws, uniforms, expert if cfg.imitation else None)
        for s, their in enumerate(theirs):
            of_seed = (None if x is None else x[s].double() for x in (draws, uniforms))
            losses = their.update(one_seed(batch, s), *of_seed, one_seed(expert, s))
            assert_losses(metrics, s, losses, tolerance)
    for s, their in enumerate(theirs):
        assert_networks(parts(agent, s), their.networks(), tolerance)


X = [-5.0, -3.0, -1.0, 0.0, 2.0]  # Q - V


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({"divergence": "tv"}, [1.0, 0.6, 0.2, 0.0, 0.8 * 2 - 0.2 * 2]),
        ({"divergence": "chi2"}, [0.8 * 1.25 + 1.0, 0.6, 0.2, 0.0, 0.8 * 3 - 0.4]),
        ({"divergence": "chi2_exact"}, [-0.8 + 1, -0.8 + 0.6, -0.8 * 0.75 + 0.2, 0.0, 2.0]),
    ],
)
def test_losses_of_the_value_by_hand(own, expected):
    found = dvl.dual_loss(torch.tensor([X]), Config(loss_temperature=0.8, **own))
    torch.testing.assert_close(found, torch.tensor([expected]))


def test_the_loss_of_kl_by_hand():
    """exp(z) - z - 1 up to the clip, over the exponential of each seed's largest, or of -1."""
    cfg = Config(divergence="kl", loss_temperature=2.0, clip=1.5)
    found = dvl.dual_loss(torch.tensor([[0.0, 2.0, 8.0], [-4.0, -6.0, -8.0]]), cfg)
    first = [(math.exp(z) - z - 1) / math.exp(1.5) for z in (0.0, 1.0, 1.5)]
    second = [(math.exp(z) - z - 1) / math.exp(-1.0) for z in (-2.0, -3.0, -4.0)]
    torch.testing.assert_close(found, torch.tensor([first, second]))


def test_critic_and_policy_loss_by_hand():
    """V = 2, Q = a: the errors are 0.5 - (1 + 0.9 * 2) and -30; beyond 20 they count 20 |e| - 200."""
    agent = make(1, 1, 1, hidden_layers=0, beta=0.5, max_weight=1.0)
    set_linear(agent.value, [[0.0]], [2.0])
    set_linear(agent.critic, [[0.0, 1.0]] * 2, [0.0] * 2)
    set_linear(agent.policy.body, [[0.0]], [0.0])  # N(0, 1)
    batch = tiny(s=[[0], [0]], a=[[0.5], [0.0]], r=[1, 30], d=[0, 1])
    assert agent.critic_loss(batch).tolist() == pytest.approx([2 * (2.3**2 / 2 + 400) / 2])
    weights = [math.exp(0.5 * (0.5 - 2)), 1.0]  # the second row's Q is 5: held to the limit
    log_probs = [-0.5 * a**2 - 0.5 * math.log(2 * math.pi) for a in (0.5, 0.0)]
    loss = agent.policy_loss(batch, torch.tensor([[0.5, 5.0]]), None)
    expected = -sum(w * p for w, p in zip(weights, log_probs, strict=True)) / 2
    assert loss.tolist() == pytest.approx([expected])


def test_the_loss_of_imitation_by_hand():
    """At M = 200 and discount 0.99 its constants are the authors' -2 and -200; V = 10, Q = a."""
    agent = make(1, 1, 1, hidden_layers=0, imitation=True, discount=0.99)
    set_linear(agent.value, [[0.0]], [10.0])
    set_linear(agent.critic, [[0.0, 1.0]] * 2, [0.0] * 2)
    batch = tiny(s=[[0], [0]], a=[[0.5], [0.0]], r=[7, 7], d=[0, 1])
    expert = tiny(s=[[0], [0]], a=[[1.0], [0.0]])
    data = (0.5 - (-2 + 0.99 * 10)) ** 2 + (-2 - 0.99 * 200) ** 2
    shown = (1 - 200) ** 2 + 200**2
    found = agent.imitation_loss(batch, expert)
    assert found.tolist() == pytest.approx([2 * (data + shown) / 2 / 2])


@pytest.mark.parametrize("discount", [0.9, 0.99])
def test_the_values_of_imitation_lie_between_their_floor_and_ceiling(discount):
    """Never demonstrated, V is -M, ended or not. The step before a demonstrated state is near M."""
    reward, high = -(1 - discount) * 200.0, 200.0
    assert reward / (1 - discount) == pytest.approx(-high)
    assert reward + discount * -high == pytest.approx(-high)
    assert reward + discount * high == pytest.approx((2 * discount - 1) * high)


def test_imitation_follows_the_demonstrations_and_not_the_data():
    """One state with uniform actions; demonstrations take 0.5 to 0.7, whatever the rewards."""
    own = {
        "imitation": True,
        "divergence": "kl",
        "random_actions": 0,
        "expert_value": 5.0,
        "lr": 1e-2,
    }
    agent = make(1, 1, 1, **own)
    rng = torch.Generator().manual_seed(0)
    for _ in range(200):
        s, a = torch.zeros(1, 64, 1), 2 * torch.rand(1, 64, 1, generator=rng) - 1
        over = torch.ones(1, 64)
        batch = Batch(s, a, -a[..., 0], s, over, a[..., :0])
        agent.update(batch, expert=batch._replace(actions=0.6 + a / 10))
    assert agent.act(torch.zeros(1, 1, 1)).item() == pytest.approx(0.6, abs=0.2)


def best_value(qs: np.ndarray, **own) -> float:
    """Returns the constant V that minimises the loss at these Q, by golden sections."""
    cfg, low, high = Config(**own), -8.0, 8.0
    of = lambda v: dvl.dual_loss(torch.from_numpy(qs - v)[None], cfg).mean().item()  # noqa: E731
    ratio = (math.sqrt(5) - 1) / 2
    for _ in range(60):
        a, b = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, b) if of(a) < of(b) else (a, high)
    return (low + high) / 2


QS = np.random.default_rng(0).normal(size=4001)


@pytest.mark.parametrize("lam", [0.6, 0.8, 0.95])
def test_the_value_of_tv_is_a_quantile(lam):
    found = best_value(QS, divergence="tv", loss_temperature=lam)
    assert found == pytest.approx(np.quantile(QS, (2 * lam - 1) / lam), abs=1e-2)


def test_the_value_of_chi2_makes_its_weights_average_to_the_density_of_the_data():
    """lambda E[(1 + x/2) 1(g grows at x)] = 1 - lambda; the two conjugates have other optima."""
    found = {}
    for divergence in ("chi2", "chi2_exact"):
        v = found[divergence] = best_value(QS, divergence=divergence, loss_temperature=0.8)
        x = QS - v
        counts = x > -2 if divergence == "chi2_exact" else (x > 0) | (x < -4)
        assert 0.8 * ((1 + x / 2) * counts).mean() == pytest.approx(0.2, abs=2e-3)
    assert found["chi2"] == pytest.approx(0.84, abs=0.02)
    assert found["chi2_exact"] == pytest.approx(1.80, abs=0.02)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 8.0])
def test_the_value_of_kl_is_a_log_mean_exp(temperature):
    """Where it has no clip, V has no gradient there: each batch's scale is constant."""
    v = torch.tensor(temperature * np.log(np.exp(QS / temperature).mean()), requires_grad=True)
    cfg = Config(divergence="kl", loss_temperature=temperature, clip=100.0)
    dvl.dual_loss(torch.from_numpy(QS)[None] - v, cfg).mean().backward()
    assert v.grad.item() == pytest.approx(0, abs=1e-9)


def test_at_lambda_1_every_value_from_the_largest_to_4_above_the_smallest_is_best():
    qs, cfg = QS[QS > 0], Config(loss_temperature=1.0)
    assert qs.max() < qs.min() + 4
    values = (qs.max() - 0.1, qs.max() + 1e-6, qs.min() + 3.99, qs.min() + 4.1)
    losses = [dvl.dual_loss(torch.from_numpy(qs - v)[None], cfg).mean().item() for v in values]
    assert [loss > 0 for loss in losses] == [True, False, False, True]


def test_random_actions_are_uniform_and_one_hot_where_actions_are_discrete():
    draws = torch.rand(1, 1, 3000, A, generator=torch.Generator().manual_seed(0))
    continuous = make(seeds=1).uniform_actions(draws)
    torch.testing.assert_close(continuous, 2 * draws - 1)
    spec = Spec(O, A, generators(1), discrete=True)
    found = DVL(Config(**SMALL), spec).uniform_actions(draws)
    assert set(found.sum(-1).flatten().tolist()) == {1.0}
    assert found.mean((0, 1, 2)).tolist() == pytest.approx([1 / A] * A, abs=0.03)


def test_random_actions_of_a_row_are_judged_at_its_state():
    agent = make(1, 1, 1, hidden_layers=0, divergence="tv", loss_temperature=0.8)
    set_linear(agent.value, [[0.0]], [0.0])
    set_linear(agent.target, [[1.0, 1.0]] * 2, [0.0] * 2)
    batch = tiny(s=[[10.0], [20.0]], a=[[0.0], [0.0]])
    draws = torch.tensor([0.5, 1.0, 0.0, 0.75]).view(1, 2, 2, 1)  # actions 0, 1, -1 and 0.5
    loss, metrics = agent.value_loss(batch, draws)
    qs = [10, 20, 10, 21, 9, 20.5]
    assert loss.tolist() == pytest.approx([0.6 * sum(qs) / 6])
    assert metrics["target_q"].tolist() == [[10.0, 20.0]]


def test_it_learns_discrete_actions():
    spec = Spec(O, A, generators(), discrete=True, steps=STEPS)
    agent = DVL(Config(**SMALL), spec)
    actions = torch.nn.functional.one_hot(torch.randint(A, (SEEDS, B)), A).float()
    batch = make_batches(1)[0]._replace(actions=actions)
    assert isinstance(batch, Batch)
    agent.update(batch, torch.rand(SEEDS, 1, B, A))
    assert agent.act(batch.observations).shape == (SEEDS, B)
