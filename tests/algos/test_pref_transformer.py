"""The Preference Transformer against its transcription; what is kept and what is relabelled."""

import math

import numpy as np
import pytest
import reference_dt
import reference_pref_transformer
import torch
from agreement import SEEDS, assert_networks, generators, net, scramble

from corerl.algos.pref_transformer import Reward, RewardModel
from corerl.nn import transformer
from corerl.nn.learner import Spec
from corerl.preferences.buffer import Pairs
from corerl.preferences.relabelling import Rows
from corerl.preferences.reward_models import combined

O, A, L, B = 3, 2, 4, 3


def settings(**more) -> Reward:
    tiny = {
        "steps": 8,
        "window": 3,
        "heads": 2,
        "layers": 2,
        "width": 8,
        "dropout": 0.25,
        "lr": 1e-2,
        "warmup": 0.25,
        "weight_decay": 0.1,
    }
    return Reward(**tiny | more)


def model(cfg: Reward, seeds: int = SEEDS) -> RewardModel:
    made = RewardModel(cfg, Spec(O, A, generators(seeds)), length=L)
    scramble(made.network, made.kept)
    return made


def comparisons(seed: int = 0) -> Pairs:
    """Of each seed's own, ties among them."""
    rng, dtype = np.random.default_rng(seed), torch.get_default_dtype()
    segments = [torch.from_numpy(rng.normal(size=(SEEDS, B, 2, L, n))).to(dtype) for n in (O, A)]
    return Pairs(*segments, torch.tensor([[0.0, 1.0, 0.5], [1.0, 1.0, 0.5]], dtype=dtype))


def rows(seed: int = 0) -> Rows:
    """Episodes of 1, 5 and 2 steps."""
    rng = np.random.default_rng(seed)
    states, actions = (rng.normal(size=(8, n)).astype(np.float32) for n in (O, A))
    return Rows(states, actions, np.zeros(8, bool), np.array([1, 6, 8]))


def forget_shifts(parameters: dict, cfg: Reward) -> None:
    """Leaves out what no score depends on: its gradient is rounding, which Adam scales up to lr.

    A softmax is blind to a bias of all keys, and a difference of scores to a bias of all rewards, as is that
    of a hidden unit which is on at every step.
    """
    for i in range(cfg.layers):
        name = f"blocks.{i}.key_value.bias"
        parameters[name] = parameters[name][:, cfg.width :]
    if cfg.attention:
        parameters["preference.bias"] = parameters["preference.bias"][:, : cfg.width]
    else:
        del parameters["head.layers.0.bias"], parameters["head.layers.1.bias"]


@pytest.mark.parametrize(
    ("attention", "scale"),
    [(True, "none"), (True, "width"), (False, "none")],
    ids=["attention", "scaled", "readme"],
)
def test_five_updates_equal_the_equations(attention, scale, tolerance):
    # In float32 the biases of `forget_shifts` walk by lr, differently on every kind of processor, until
    # a unit that was on at every step is off at one.
    cfg = settings(attention=attention, scale=scale, lr=1e-2 if tolerance < 1e-6 else 1e-3)
    mine = model(cfg)
    keys = transformer.dropout_keys(range(SEEDS), mine.network.places)
    theirs = [reference_pref_transformer.Reward(net(mine.network, s), cfg) for s in range(SEEDS)]
    for k in range(5):
        batch, key = comparisons(k), keys.next()
        loss = mine.update(batch, key)["reward_loss"]
        for s in range(SEEDS):
            own = (x[s].double() for x in batch[:3])
            expected = theirs[s].update(*own, reference_dt.masks(key[s].tolist(), cfg, 2))
            assert loss[s].item() == pytest.approx(expected, rel=tolerance, abs=tolerance)
    for s in range(SEEDS):
        networks = net(mine.network, s), theirs[s].network()
        if tolerance > 1e-6:
            for parameters in networks:
                forget_shifts(parameters, cfg)
        assert_networks(*networks, tolerance)


@pytest.mark.parametrize("attention", [True, False], ids=["attention", "readme"])
def test_a_reward_is_of_the_window_that_ends_at_its_step(attention, tolerance):
    cfg = settings(attention=attention, keep="last")
    mine, data = model(cfg), rows()
    dtype = torch.get_default_dtype()
    data = data._replace(
        observations=torch.from_numpy(data.observations).to(dtype).numpy(),
        actions=torch.from_numpy(data.actions).to(dtype).numpy(),
    )
    rewards = mine.rewards(data, piece=3)
    for s in range(SEEDS):
        theirs = reference_pref_transformer.Reward(net(mine.network, s), cfg)
        states, actions = (torch.from_numpy(x).double() for x in data[:2])
        expected = theirs.relabelled(states, actions, data.episode_ends)
        np.testing.assert_allclose(rewards[s], expected, rtol=tolerance, atol=tolerance)


def test_a_window_is_no_longer_than_the_segments_that_were_compared():
    """Later time steps have no embedding that anything trained."""
    longer, whole = (model(settings(window=window)) for window in (9, L))
    assert longer.network.embed_time.weight.shape[-2] == L + 1
    torch.testing.assert_close(longer.rewards(rows()), whole.rewards(rows()), rtol=0, atol=0)


def test_the_score_by_hand():
    """Equal queries and keys weigh every step alike, so that z_t is the mean of the rewards."""
    mine = model(settings(), seeds=1)
    with torch.no_grad():
        mine.network.preference.weight[..., :-1] = 0
    observations, actions, _ = (x[:1] for x in comparisons()[:3])
    segment = observations[:, :, 0], actions[:, :, 0]
    hidden = mine.network.hidden(*segment, torch.ones(1, B, L))
    expected = mine.network.rewards(hidden).mean(-1)
    torch.testing.assert_close(mine.network.score(*segment), expected)


@pytest.mark.parametrize(("scale", "root"), [("none", 1.0), ("width", 8**0.5)])
def test_products_of_queries_and_keys_are_weights_as_they_are(scale, root):
    """Queries are ones; keys add up to 0, 1, 2, 3 and rewards are 1, 0, 0, 0: z is the first weight."""
    mine = model(settings(scale=scale), seeds=1).network
    layer = mine.preference
    with torch.no_grad():
        layer.weight.zero_(), layer.bias.zero_()
        layer.bias[..., :8] = 1.0
        layer.weight[0, 0, 8], layer.weight[0, 1, 16] = 1.0, 1.0
    hidden = torch.zeros(1, 1, 4, 8)
    hidden[0, 0, :, 0] = torch.arange(4.0)
    hidden[0, 0, 0, 1] = 1.0
    mine.hidden = lambda *_: hidden
    score = mine.score(torch.zeros(1, 1, 4, O), torch.zeros(1, 1, 4, A))
    expected = 1 / sum(math.exp(k / root) for k in range(4))
    assert score.item() == pytest.approx(expected, rel=1e-6)


def test_no_reward_sees_the_future_but_attention_weighs_it():
    mine = model(settings())
    observations, actions, _ = (x[:, :, 0] if x.ndim > 2 else x for x in comparisons()[:3])
    changed = observations.clone()
    changed[:, :, -1] += 1
    before, after = (
        mine.network.rewards(mine.network.hidden(x, actions, torch.ones(SEEDS, B, L)))
        for x in (observations, changed)
    )
    assert torch.equal(before[..., :-1], after[..., :-1])
    assert not torch.equal(before[..., -1], after[..., -1])
    own = actions.clone()
    own[:, :, 1] += 1
    after = mine.network.rewards(mine.network.hidden(observations, own, torch.ones(SEEDS, B, L)))
    assert torch.equal(before[..., 0], after[..., 0])
    assert not torch.equal(before[..., 1], after[..., 1]), "a reward sees its own action"


def test_weights_are_kept_where_the_loss_is_smallest():
    mine = model(settings(dropout=0.0))
    batch = comparisons()
    mine.look(batch)
    assert mine.best_loss.value.isfinite().all()
    first = {k: v.clone() for k, v in mine.kept.state_dict().items()}
    for name, value in mine.network.state_dict().items():
        assert torch.equal(first[name], value)
    with torch.no_grad():  # seed 0 gets worse, seed 1 perfect
        mine.network.preference.weight.mul_(3)
        loss = mine.loss(batch, None)[0]
        mine.best_loss.value.copy_(loss + torch.tensor([-0.1, 0.1]))
    mine.look(batch)
    for name, value in mine.kept.state_dict().items():
        assert torch.equal(value[0], first[name][0])
        assert torch.equal(value[1], mine.network.state_dict()[name][1])
    torch.testing.assert_close(mine.best_loss.value, loss - torch.tensor([0.1, 0.0]))
    with torch.no_grad():  # an improvement of less than a thousandth is none
        mine.best_loss.value.copy_(loss + 5e-4)
        mine.network.norm.weight.mul_(1)
        mine.kept.norm.weight.zero_()
    mine.look(batch)
    assert not mine.kept.norm.weight.any()


def test_kept_weights_make_the_rewards():
    mine = model(settings(keep="best"))
    assert not torch.allclose(mine.rewards(rows()), model_of_last(mine).rewards(rows()))
    mine.look(comparisons())
    torch.testing.assert_close(mine.rewards(rows()), model_of_last(mine).rewards(rows()))


@pytest.mark.parametrize("ensemble", ["mean", "worst"])
def test_two_members_of_a_seed_are_two_seeds(ensemble):
    """With the same weights and comparisons. `rewards` combines what the two seeds would say."""
    apart = model(settings(keep="last"), seeds=2)
    cfg = settings(keep="last", members=2, ensemble=ensemble)
    together = RewardModel(cfg, Spec(O, A, generators(1)), length=L)
    first, second = together.network.embed_state.weight
    assert not torch.equal(first, second), "members begin at weights of their own"
    together.load_state_dict(apart.state_dict())
    batch, keys = comparisons(), transformer.dropout_keys([0, 1], apart.network.places).next()
    each = apart.update(batch, keys)
    mean = together.update(Pairs(*(x.flatten(0, 1)[None] for x in batch[:3])), keys.view(1, -1))
    for name, value in each.items():
        torch.testing.assert_close(mean[name], value.mean(0, keepdim=True))
    assert_networks(net(apart.network, 1), net(together.network, 1), 1e-6)
    expected = combined(cfg, apart.rewards(rows())[None])
    torch.testing.assert_close(together.rewards(rows()), expected)


def model_of_last(mine: RewardModel) -> RewardModel:
    other = RewardModel(settings(keep="last"), Spec(O, A, generators()), length=L)
    other.load_state_dict(mine.state_dict())
    return other


# Weights and settings.


def test_weights_begin_as_flax_draws_them():
    cfg = Reward(width=256, heads=4)
    network = RewardModel(cfg, Spec(17, 6, generators(1)), length=100).network
    for layer in (network.blocks[0].widen, network.preference, network.embed_state):
        fan_in = layer.weight.shape[-2]
        assert layer.weight.std().item() == pytest.approx(fan_in**-0.5, rel=0.05)
        assert layer.weight.abs().max() <= 2 * fan_in**-0.5 / 0.8796
        assert not layer.bias.any()
    assert network.embed_time.weight.std().item() == pytest.approx(1 / 16, rel=0.05)
    assert len(network.blocks) == 1 and network.preference.weight.shape[-1] == 513
    head = RewardModel(Reward(attention=False), Spec(17, 6, generators(1)), length=100).network.head
    assert [layer.weight.shape[-1] for layer in head.layers] == [128, 1]


def test_infinity_survives_a_checkpoint(tmp_path):
    from corerl.runs import checkpoint

    mine, other = model(settings()), model(settings())
    checkpoint.save_checkpoint(tmp_path / "c", mine.state_dict())
    other.load_state_dict(checkpoint.load_checkpoint(tmp_path / "c"))
    assert other.best_loss.value.tolist() == [math.inf] * SEEDS
