"""QCS against its transcription, the Decision Transformer where Q has no weight, and an exact optimum."""

from types import SimpleNamespace

import numpy as np
import pytest
import reference
import reference_dt
import tiny
import torch
from agreement import (
    SEEDS,
    A,
    O,
    assert_losses,
    assert_networks,
    generators,
    make_batches,
    net,
    one_seed,
    scramble,
    set_linear,
    twins,
)
from reference_soft import leaves, mlp, numbers, q
from small import flatten
from torch.nn.functional import mse_loss

from corerl.algos import dt, qcs
from corerl.algos.dt import DT
from corerl.algos.qcs import QCS, Config, Critic, StepPolicy, Values, q_weights
from corerl.buffers.sequences import SequenceBuffer, Windows
from corerl.data.dataset import Dataset
from corerl.data.tasks import resolve
from corerl.nn import networks, transformer
from corerl.nn.learner import Spec

K, B = 4, 5
ENDS = np.array([3, 13, 14, 24])
CRITIC = {"hidden_width": 6, "polyak": 0.1, "discount": 0.9, "expectile": 0.8}
SMALL = {"context": K, "width": 8, "layers": 2, "max_timestep": 6, "batch_size": B, "lr": 1e-2} | {
    "warmup_steps": 3,
    "weight_decay": 0.1,
}


def make(kind=QCS, seeds: int = SEEDS, **more):
    settings = dt.Config(**SMALL | {"heads": 2} | more) if kind is DT else None
    settings = settings or Config(**SMALL | {"critic": Critic(**CRITIC)} | more)
    normalizer = networks.Normalizer.of(np.full(O, 0.5), np.full(O, 2.0))
    return kind(settings, Spec(O, A, generators(seeds), normalizer=normalizer))


def make_windows(count: int, length: int = K) -> list[tuple[Windows, torch.Tensor]]:
    """Windows of random episodes, and weights of Q of which a third are 0."""
    rng = np.random.default_rng(0)
    rows = (rng.normal(size=(24, O)), rng.uniform(-1, 1, (24, A)), rng.normal(size=24))
    filler = (np.zeros(O), np.full(A, -10.0))
    weights = rng.uniform(0, 3, 24) * (rng.random(24) > 0.3)
    buffer = SequenceBuffer(
        *rows, ENDS, range(SEEDS), B, length, filler=filler, last_timestep=5, labels=weights
    )
    dtype = torch.get_default_dtype()

    def cast(x: torch.Tensor) -> torch.Tensor:
        return x.to(dtype) if x.is_floating_point() else x

    drawn = [buffer.sample_labelled() for _ in range(count)]
    return [(Windows(*map(cast, windows)), cast(w)) for windows, w in drawn]


class Fitted:
    """One seed's critic: V, then Q with the new V, then the targets."""

    def __init__(self, value, critics, targets, settings):
        self.iql = reference.IQL(value, {}, critics, targets, settings, 1)

    def update(self, batch) -> dict:
        iql, c = self.iql, self.iql.settings
        s, a = batch.observations, batch.actions
        lowest = np.min([reference.q(t, s, a) for t in iql.targets], 0)
        losses = {"value_loss": iql.fit_value(s, lowest)}
        following = reference.mlp(iql.value, batch.next_observations)[0][:, 0]
        y = batch.rewards + c.discount * (1 - batch.terminated) * following
        losses["critic_loss"] = reference.regress_critics(
            iql.critics, iql.critic_optimizers, batch, y
        )
        for target, online in zip(iql.targets, iql.critics, strict=True):
            reference.polyak(target, online, c.polyak)
        return losses


class Policy:
    """One seed's policy, window by window, of a critic that stays as it is."""

    def __init__(self, policy, critics, size: float, settings):
        self.c, self.size, self.critics = settings, size, [leaves(c) for c in critics]
        self.net = leaves(policy)
        decay = {"lr": settings.lr, "weight_decay": settings.weight_decay}
        self.optimizer = torch.optim.AdamW(self.net.values(), **decay)
        rise = lambda n: min((n + 1) / settings.warmup_steps, 1)  # noqa: E731
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, rise)

    def actions(self, w: Windows) -> torch.Tensor:
        if self.c.policy == "transformer":
            sizes = self.c.layers, self.c.heads, torch.relu
            return reference_dt.actions(self.net, w, *sizes, lambda place, x, head=0: x)
        inputs = torch.cat([w.observations, w.returns_to_go[:, None]], 1)
        return torch.tanh(mlp(self.net, inputs, "body."))

    def update(self, windows: Windows, weights) -> dict:
        errors, aids = [], []
        for b, weight in enumerate(weights.double()):
            w = Windows(*(x[b].double() for x in windows))
            for k, action in enumerate(self.actions(w)):
                if w.valid[k] == 0:
                    continue
                state = (w.observations[k] * 2 + 0.5)[None]
                low = torch.minimum(*(q(net, state, action[None])[0] for net in self.critics))
                errors.append(mse_loss(action, w.actions[k]))
                aids.append(weight * low / self.size)
        imitation, aid = torch.stack(errors).mean(), torch.stack(aids).mean()
        self.optimizer.zero_grad()
        (imitation - aid).backward()
        self.optimizer.step()
        self.schedule.step()
        return {"imitation_loss": imitation.item(), "q_aid": aid.item()}


@pytest.mark.parametrize("policy", ["transformer", "mlp"])
def test_five_updates_equal_the_equations(policy, tolerance):
    agent = make(policy=policy, dropout=0.0)
    values = agent.values
    scramble(agent.transformer, values.critic, values.value, values.target)

    def fitted(s):
        return net(values.value, s), twins(values.critic, s), twins(values.target, s)

    critics = [Fitted(*fitted(s), agent.cfg.critic) for s in range(SEEDS)]
    for batch in make_batches(5):
        metrics = agent.fit(batch)
        for s, theirs in enumerate(critics):
            assert_losses(metrics, s, theirs.update(one_seed(batch, s)), tolerance)
    for s, theirs in enumerate(critics):
        ours = (theirs.iql.value, theirs.iql.critics, theirs.iql.targets)
        assert_networks(fitted(s), ours, tolerance)
    kept = flatten(values.state_dict())
    agent.q_size.copy_(torch.tensor([0.7, 1.3]))
    policies = [
        Policy(
            net(agent.transformer, s), twins(values.critic, s), float(agent.q_size[s]), agent.cfg
        )
        for s in range(SEEDS)
    ]
    for windows, weights in make_windows(5):
        metrics = agent.update(windows, weights, None)
        for s, theirs in enumerate(policies):
            expected = theirs.update(Windows(*(x[s] for x in windows)), weights[s])
            assert_losses(metrics, s, expected, tolerance)
    for s, theirs in enumerate(policies):
        mine, expected = net(agent.transformer, s), numbers(theirs.net)
        if policy == "transformer":
            for parameters in (mine, expected):
                forget_key_biases(parameters, agent.cfg)
        assert_networks(mine, expected, tolerance)
    assert flatten(values.state_dict()) == kept  # the critic is frozen


def forget_key_biases(parameters: dict, cfg: Config) -> None:
    """A softmax is blind to a bias of all keys: its gradient is rounding, which Adam scales up."""
    for i in range(cfg.layers):
        name = f"blocks.{i}.key_value.bias"
        parameters[name] = parameters[name][:, cfg.width :]


@pytest.mark.parametrize("policy", ["transformer", "mlp"])
def test_without_weight_it_is_imitation_to_the_bit(policy):
    """Of the Decision Transformer, or of a network that is given the state and the return (RvS)."""
    agent = make(policy=policy, max_grad_norm=0.25)
    network = dt.Transformer if policy == "transformer" else StepPolicy
    plain = make(lambda cfg, spec: DT(agent.cfg, spec, network))
    scramble(agent.values.critic)
    keys = transformer.dropout_keys(range(SEEDS), agent.transformer.places)
    for windows, weights in make_windows(4):
        key = keys.next()
        agent.update(windows, 0 * weights, key)
        plain.update(windows, key)
        assert flatten(plain.transformer.state_dict()) == flatten(agent.transformer.state_dict())
    agent.update(windows, weights, key)
    plain.update(windows, key)
    assert flatten(plain.transformer.state_dict()) != flatten(agent.transformer.state_dict())


def test_without_weight_its_whole_run_is_the_decision_transformers():
    alike = {"heads": 2, "layers": 1, "max_grad_norm": 0.25}
    mine = tiny.Short(tiny.settings("qcs", q_scale=0.0, **alike), updates=tiny.FITTED + 6)
    plain = tiny.Short(tiny.settings("dt", **alike), updates=6)
    networks = [flatten(run.parts["agent"].transformer.state_dict()) for run in (mine, plain)]
    assert networks[0] == networks[1]
    other = tiny.Short(tiny.settings("qcs", **alike), updates=tiny.FITTED + 6)
    assert flatten(other.parts["agent"].transformer.state_dict()) != networks[1]


def test_the_loss_by_hand():
    """Actions (1, 0) for (0, 0) at two steps: 1/2 of imitation. Q = 3 a1 = 3, w = 2, size 4: less 6/4."""
    agent = make(seeds=1)
    object.__setattr__(
        agent, "transformer", lambda windows, keys: torch.tensor([1.0, 0.0]).expand(1, 1, K, A)
    )
    agent.q_size.fill_(4.0)
    agent.values = SimpleNamespace(critic=lambda s, a: (3 * a[..., 0])[:, None].expand(-1, 2, -1))
    zeros = torch.zeros(1, 1, K)
    valid = torch.tensor([[[0.0, 0.0, 1.0, 1.0]]])
    windows = Windows(
        zeros[..., None].expand(1, 1, K, O), torch.zeros(1, 1, K, A), zeros, zeros.long(), valid
    )
    loss, metrics = agent.loss(windows, torch.tensor([[2.0]]), None)
    assert loss.item() == pytest.approx(0.5 - 1.5)
    assert metrics["policy_q"].item() == pytest.approx(3.0)


def episodes() -> Dataset:
    """Two episodes, of returns -1224.9 and -150.1 in three and two steps: scores 0 and 100 on Pendulum."""
    rewards = np.array([-1000.0, -224.9, 0.0, -150.0, -0.1])
    truncated = np.array([False, False, True, False, True])
    states, actions = np.zeros((5, O)), np.zeros((5, A))
    return Dataset.from_steps(
        "test/two", states, actions, rewards, states, np.zeros(5, bool), truncated
    )


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({}, [100, 0]),
        ({"q_scale": 0.5, "best_score": 110.0}, [55, 5]),
        ({"min_q": 10.0}, [100, 10]),
        ({"best_score": -20.0}, [0, 0]),
    ],
)
def test_weights_fall_with_the_score_of_the_episode(own, expected):
    found = q_weights(Config(**own), resolve("corerl/pendulum"), episodes())
    np.testing.assert_allclose(found, np.repeat(expected, [3, 2]), atol=1e-3)


def test_scores_are_the_datas_range_where_a_task_has_none():
    nothing = SimpleNamespace(normalize=lambda returns: None)
    np.testing.assert_allclose(q_weights(Config(), nothing, episodes()), [100, 100, 100, 0, 0])
    one = episodes().select_episodes([0])
    np.testing.assert_allclose(q_weights(Config(), nothing, one), [100] * 3)


def test_the_size_of_q_is_that_of_all_rows(monkeypatch):
    monkeypatch.setattr(qcs, "AT_ONCE", 7)
    values = Values(Critic(**CRITIC), Spec(O, A, generators()))
    scramble(values.critic)
    rng = np.random.default_rng(0)
    s, a = (rng.normal(size=(20, n)).astype(np.float32) for n in (O, A))
    for seed, size in enumerate(values.size(s, a)):
        q1, q2 = (
            reference.q(c, s.astype(float), a.astype(float)) for c in twins(values.critic, seed)
        )
        assert size.item() == pytest.approx(abs(np.minimum(q1, q2).mean()), rel=1e-5)


def test_the_optimum_moves_from_the_datas_action_as_far_as_the_return_is_short():
    """With Q = c a the loss is least at a + w c A / (2 size): .6 - .0 and .1 + .3 for both returns."""
    cfg = Config(
        policy="mlp", context=1, width=32, layers=2, heads=1, lr=1e-2, warmup_steps=1, dropout=0.0
    )
    cfg.critic = Critic(hidden_layers=0)
    normalizer = networks.Normalizer.of([0.0], [1.0])
    agent = QCS(cfg, Spec(1, 1, generators(1), normalizer=normalizer))
    set_linear(agent.values.critic, [[[0.0], [3.0]]] * 2, [[5.0]] * 2)
    agent.q_size.fill_(5.0)
    shape, actions, returns = (1, 2, 1), [0.6, 0.1], [1.0, 0.0]
    windows = Windows(
        torch.zeros(*shape, 1),
        torch.tensor(actions).view(*shape, 1),
        torch.tensor(returns).view(shape),
        torch.zeros(shape, dtype=torch.long),
        torch.ones(shape),
    )
    weights = torch.tensor([[0.0, 1.0]])
    for _ in range(600):
        agent.update(windows, weights, None)
    found = agent.transformer(windows).flatten().tolist()
    assert found == pytest.approx([0.6, 0.1 + 3 / 5 / 2], abs=0.01)
