"""DTR against its transcription: losses, windows, candidates."""

from types import SimpleNamespace

import numpy as np
import pytest
import reference_dt
import reference_dtr
import torch
from agreement import SEEDS, assert_losses, assert_networks, generators, net, scramble, twins

from corerl import seeding
from corerl.algos import dt
from corerl.algos.dtr import DTR, TARGETS, Config, DTRPlayer
from corerl.nn import networks, transformer
from corerl.nn.learner import Spec
from corerl.preferences import relabelling
from corerl.preferences.relabelling import RelabelledSequences, RewardedWindows

O, A, K, B, STEPS = 3, 2, 4, 5, 7  # with `lr_every` a broken last round
ENDS = np.array([3, 13, 14, 24])


def settings(**more) -> Config:
    tiny = {
        "context": K,
        "width": 8,
        "heads": 2,
        "layers": 2,
        "critic_layers": 2,
        "max_timestep": 10,
        "batch_size": B,
        "lr": 1e-2,
        "lr_every": 2,
        "weight_decay": 0.1,
        "ema": 0.3,
        "ema_every": 2,
        "ema_start": 2,
        "polyak": 0.2,
        "discount": 0.9,
        "eta": 3.0,
        "max_grad_norm": 0.5,
    }
    return Config(**tiny | more)


def rows() -> relabelling.Rows:
    """Episodes of 3, 10, 1 and 10 steps; the second ends in a terminal."""
    rng = np.random.default_rng(0)
    n = ENDS[-1]
    terminated = np.arange(n) == 12
    states, actions = rng.normal(2.0, 3.0, (n, O)), rng.uniform(-1, 1, (n, A))
    return relabelling.Rows(states, actions, terminated, ENDS)


def loaded(cfg: Config) -> tuple[RelabelledSequences, torch.Tensor]:
    """The windows under rewards of each seed's own."""
    run = SimpleNamespace(seeds=range(SEEDS), device=torch.device("cpu"))
    lengths = {"length": cfg.context, "last_timestep": cfg.max_timestep - 1}
    options = lengths | {"batch_size": cfg.batch_size, "return_scale": cfg.return_scale}
    buffer, _ = relabelling.sequences(run, rows(), **options)
    rng = np.random.default_rng(1)
    rewards = torch.from_numpy(rng.normal(size=(SEEDS, len(buffer)))).float()
    buffer.relabel(rewards)
    return buffer, rewards


def sample(cfg: Config, count: int, starts=None) -> list[RewardedWindows]:
    buffer, dtype = loaded(cfg)[0], torch.get_default_dtype()
    draws = [buffer.sample() if starts is None else buffer.windows(starts) for _ in range(count)]
    return [w.__class__(*(x.to(dtype) if x.is_floating_point() else x for x in w)) for w in draws]


# The update.


@pytest.mark.parametrize("dropout", [0.0, 0.25], ids=["plain", "dropout"])
def test_five_updates_equal_the_equations(dropout, tolerance):
    cfg = settings(dropout=dropout)
    agent = DTR(cfg, Spec(O, A, generators(), steps=STEPS))
    scramble(agent.transformer, agent.critic, agent.target_transformer, agent.target_critic)
    keys = transformer.dropout_keys(range(SEEDS), 2 * agent.transformer.places)
    order = seeding.uniform(range(SEEDS), "order", (1,))
    references = [
        reference_dtr.DTR(
            net(agent.transformer, s),
            twins(agent.critic, s),
            net(agent.target_transformer, s),
            twins(agent.target_critic, s),
            cfg,
            STEPS,
        )
        for s in range(SEEDS)
    ]
    for windows in sample(cfg, 5):
        key, coin = keys.next(), order.next()
        metrics = agent.update(windows, key, coin)
        for s, theirs in enumerate(references):
            mine = RewardedWindows(*(x[s] for x in windows))
            halves = [reference_dt.masks(half[s].tolist(), cfg) for half in key.chunk(2, 1)]
            expected = theirs.update(mine, *halves, coin[s].item())
            assert_losses(metrics, s, expected, tolerance)
    for s, theirs in enumerate(references):
        mine = (
            net(agent.transformer, s),
            twins(agent.critic, s),
            net(agent.target_transformer, s),
            twins(agent.target_critic, s),
        )
        expected = theirs.networks()
        if tolerance > 1e-6:  # a gradient that is rounding alone, which Adam scales up to lr
            for policy in (mine[0], mine[2], expected[0], expected[2]):
                for i in range(cfg.layers):
                    name = f"blocks.{i}.key_value.bias"
                    policy[name] = policy[name][:, cfg.width :]
        assert_networks(mine, expected, tolerance)


def test_targets_by_hand():
    """Discount 1/2, value 8 at the end: rewards 1, 2, 4 on the way give 1 + 1 + 1 + 8/8, 2 + 2 + 8/4, ..."""
    agent = DTR(settings(discount=0.5), Spec(O, A, generators(1), steps=STEPS))
    with torch.no_grad():
        for p in agent.target_critic.parameters():
            p.zero_()
        agent.target_critic.layers[-1].bias[:, 0] = 8
        agent.target_critic.layers[-1].bias[:, 1] = 9
    windows = sample(settings(), 1, torch.tensor([[3], [3]]))[0]
    windows = RewardedWindows(*(x[:1] for x in windows))
    windows = windows._replace(rewards=torch.tensor([[[1.0, 2.0, 4.0, 99.0]]]))
    alive = windows._replace(terminated=torch.zeros(1, 1, K))
    assert agent.targets(alive, None)[0, 0, :3].tolist() == [4.0, 6.0, 8.0]
    over = windows._replace(terminated=torch.tensor([[[0.0, 0.0, 0.0, 1.0]]]))
    assert agent.targets(over, None)[0, 0, :3].tolist() == [3.0, 4.0, 4.0]
    on_the_way = windows._replace(terminated=torch.tensor([[[0.0, 1.0, 0.0, 0.0]]]))
    assert agent.targets(on_the_way, None)[0, 0, :3].tolist() == [4.0, 6.0, 8.0]


def test_the_weight_of_q_grows_from_nothing_and_follows_the_drawn_order():
    agent = DTR(settings(dropout=0.0), Spec(O, A, generators(), steps=STEPS))
    scramble(agent.transformer, agent.critic)
    windows = sample(settings(), 1)[0]
    low, high = torch.zeros(SEEDS, 1), torch.ones(SEEDS, 1)
    begin, half = torch.tensor(0.0), torch.tensor(0.5)
    loss, metrics = agent.policy_loss(windows, None, low, begin)
    torch.testing.assert_close(loss, metrics["bc_loss"])
    loss, metrics = agent.policy_loss(windows, None, high, half)
    torch.testing.assert_close(loss, metrics["bc_loss"] + 3.0 * 0.5 * metrics["q_loss"])
    agent.critic.layers[-1].bias.data += 100  # both means are now close to their sizes
    agent.critic.layers[-1].bias.data[:, 1] *= 2
    ratio = [agent.policy_loss(windows, None, x, half)[1]["q_loss"] for x in (high, low)]
    torch.testing.assert_close(ratio[0], torch.full((SEEDS,), -0.5), atol=0.05, rtol=0)
    torch.testing.assert_close(ratio[1], torch.full((SEEDS,), -2.0), atol=0.2, rtol=0)


def test_a_window_of_one_step_teaches_the_critics_nothing_and_spoils_nothing():
    agent = DTR(settings(), Spec(O, A, generators(), steps=STEPS))
    windows = sample(settings(), 1, torch.tensor([[13], [13]]))[0]  # an episode of one step
    assert windows.valid.sum() == SEEDS
    assert agent.critic_loss(windows, None)[0].tolist() == [0.0, 0.0]


# Windows.


def test_windows_carry_their_own_seeds_rewards_and_returns_to_go():
    cfg = settings(return_scale=10.0)
    buffer, rewards = loaded(cfg)
    windows = buffer.windows(torch.arange(len(buffer)).expand(SEEDS, -1))
    for s in range(SEEDS):
        for row in range(len(buffer)):
            end = int(ENDS[np.searchsorted(ENDS, row, side="right")])
            there = list(range(row, min(row + K, end)))
            pad = K - len(there)
            assert windows.valid[s, row].tolist() == [0.0] * pad + [1.0] * len(there)
            own = rewards[s].double().numpy()
            to_go = [own[i:end].sum() / 10 for i in there]
            np.testing.assert_allclose(windows.rewards[s, row, pad:], own[there], rtol=1e-6)
            np.testing.assert_allclose(windows.returns_to_go[s, row, pad:], to_go, atol=1e-6)
            assert not windows.rewards[s, row, :pad].any()
            assert not windows.returns_to_go[s, row, :pad].any()
            assert windows.terminated[s, row, pad:].tolist() == [float(i == 12) for i in there]


# Acting.


def acting(**more):
    normalizer = networks.Normalizer.of([1.0] * O, [2.0] * O)
    spec = Spec(O, A, generators(), steps=STEPS, normalizer=normalizer)
    agent = DTR(settings(**more), spec)
    scramble(agent.transformer, agent.target_critic)
    agent.best_return.value.copy_(torch.tensor([50.0, 20.0]))
    return agent, DTRPlayer(agent, [0, 1])


def history_action(agent, s: int, observations, actions, asked: float, last: float):
    """The transcription's action after a history, asking for `asked` and in the end for `last`."""
    t = len(observations)
    to_go = np.array([asked * (1 - i / agent.cfg.max_timestep) for i in range(t)])
    to_go[-1] = last
    pad = max(0, K - t)
    recent = slice(max(0, t - K), t)

    def padded(x):
        return torch.from_numpy(np.concatenate([np.zeros((pad, *x.shape[1:])), x[recent]]))

    window = dt.Windows(
        padded((observations - 1) / 2),
        padded(np.concatenate([actions, np.zeros((1, A))])),
        padded(to_go),
        padded(np.arange(t)).long(),
        padded(np.ones(t)),
    )
    policy = reference_dtr.leaves(net(agent.transformer, s))
    everything = reference_dt.actions(
        policy, window, agent.cfg.layers, agent.cfg.heads, torch.relu, lambda place, x, head=0: x
    )
    action = everything[-1].detach()
    values = [
        reference_dtr.mlp(
            reference_dtr.leaves(critic),
            torch.cat([window.observations[-1], action]),
            torch.nn.functional.mish,
        ).item()
        for critic in twins(agent.target_critic, s)
    ]
    return action.numpy(), min(values)


def test_argmax_takes_the_best_of_five_and_asks_for_less_at_every_step():
    agent, player = acting(select="argmax")
    rng = np.random.default_rng(0)
    for _ in range(2):  # the second episodes find no trace of the first
        player.begin(2, 1)
        seen, done = np.zeros((2, 0, O)), np.zeros((2, 0, A))
        for _ in range(K + 2):
            seen = np.concatenate([seen, rng.normal(size=(2, 1, O))], 1)
            actions = player(torch.from_numpy(seen[:, -1:]).float())
            player.reward(torch.full((2, 1), 1e6))
            for s, best in enumerate((5.0, 2.0)):
                left = 1 - (seen.shape[1] - 1) / agent.cfg.max_timestep
                tried = [
                    history_action(agent, s, seen[s], done[s], best * x, best * x * left)
                    for x in TARGETS
                ]
                expected = max(tried, key=lambda pair: pair[1])[0]
                np.testing.assert_allclose(actions[s, 0], expected, atol=1e-5)
            done = np.concatenate([done, actions.numpy()], 1)


@torch.no_grad()
def test_candidates_of_one_past_are_the_policys_actions():
    """Several returns-to-go at once, against a pass for each; some windows begin with padding."""
    agent, _ = acting()
    windows = sample(settings(), 1)[0]
    windows = dt.Windows(*windows[:5])
    last = torch.linspace(-1, 3, SEEDS * B * 4).view(SEEDS, B, 4)
    together = agent.transformer.branches(windows, last)
    assert together.shape == (SEEDS, B, 4, A)
    for r in range(4):
        to_go = windows.returns_to_go.clone()
        to_go[:, :, -1] = last[:, :, r]
        alone = agent.transformer(windows._replace(returns_to_go=to_go))[:, :, -1]
        torch.testing.assert_close(together[:, :, r], alone)


def test_a_step_tries_ten_of_each_return_all_but_five_with_noise():
    _, player = acting(select="softmax", return_noise=0.5)
    player.begin(2, 3)
    asked = player._first
    shares = torch.tensor([0.5, 0.75, 1.0, 1.5, 2.0])  # of the best return, QT's
    torch.testing.assert_close(asked[:, 1], torch.tensor([[5.0], [2.0]]) * shares)
    last = player._last_returns(asked)
    assert last.shape == (2, 3, 5, 10)
    noise = last - asked[..., None]
    assert not noise[:, :, 0, :5].any(), "the first five, which are the lowest return's"
    noise = noise.flatten(2)[..., 5:]
    assert noise.all() and noise.std().item() == pytest.approx(0.5, abs=0.1)


def test_the_candidate_that_is_chosen_is_done():
    """With two candidates for each return, and the choice of one of them by its number."""
    agent, player = acting(select="softmax")
    player.begin(2, 1)
    player._last_returns = lambda to_go: to_go[..., None] + torch.tensor([-0.5, 0.5])
    player._choose = lambda q: found.append(q) or torch.tensor([[7], [2]])
    rng = np.random.default_rng(0)
    seen, done = np.zeros((2, 0, O)), np.zeros((2, 0, A))
    for t in range(3):
        found = []
        seen = np.concatenate([seen, rng.normal(size=(2, 1, O))], 1)
        actions = player(torch.from_numpy(seen[:, -1:]).float())
        for s, (best, number) in enumerate(((5.0, 7), (2.0, 2))):
            asked = best * TARGETS[number // 2]
            last = asked * (1 - t / agent.cfg.max_timestep) + (0.5 if number % 2 else -0.5)
            action, value = history_action(agent, s, seen[s], done[s], asked, last)
            np.testing.assert_allclose(actions[s, 0], action, atol=1e-5)
            assert found[0][s, 0, number].item() == pytest.approx(value, abs=1e-5)
        done = np.concatenate([done, actions.numpy()], 1)


def test_softmax_draws_by_value_and_argmax_takes_the_largest():
    _, player = acting(select="softmax")
    player.begin(2, 4000)
    q = torch.tensor([0.0, np.log(5), np.log(2)]).expand(2, 4000, 3)
    chosen = player._choose(q)
    shares = torch.stack([(chosen == i).float().mean(1) for i in range(3)], 1)
    torch.testing.assert_close(shares, torch.tensor([[1, 5, 2]] * 2) / 8, atol=0.03, rtol=0)
    assert (acting(select="argmax")[1]._choose(q) == 1).all()


def test_a_seeds_candidates_are_its_own_and_the_same_at_every_evaluation():
    agent, player = acting(select="softmax")
    observations = torch.randn(2, 3, O)

    def play():
        player.begin(2, 3)
        return torch.stack([player(observations) for _ in range(3)])

    assert torch.equal(play(), play())
    other = DTRPlayer(agent, [5, 1])
    other.begin(2, 3)
    theirs = torch.stack([other(observations) for _ in range(3)])
    assert torch.equal(theirs[:, 1], play()[:, 1]) and not torch.equal(theirs[:, 0], play()[:, 0])


# Settings.


@pytest.mark.parametrize(("steps", "rates"), [(4, [1.0, 0.5]), (5, [1.0, 0.75, 0.25]), (1, [1.0])])
def test_rates_reach_zero_after_the_last_round_though_it_be_short(steps, rates):
    agent = DTR(settings(lr=1.0), Spec(O, A, generators(1), steps=steps))
    seen = []
    for _ in range(steps):
        seen.append(float(agent.policy_schedule.lr))
        agent.policy_schedule.step()
    assert seen == pytest.approx([rates[k // 2] for k in range(steps)])
