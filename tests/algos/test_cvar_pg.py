"""Policy gradients for risk: scores by hand, the exact gradient, the transcription, and runs."""

import math
from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
from agreement import assert_networks, net, scramble
from reference_cvar import SEEDS, A, E, O, PolicyGradient, T, make_played
from reference_distributional import numbers
from small import run, state_of

from corerl import seeding
from corerl.algos.cvar_pg import Config, CVaRPG, Level, ScoringFunction
from corerl.config import Config as RunConfig
from corerl.config import Eval
from corerl.envs import mdps
from corerl.launch.settings_tables import table
from corerl.nn import policies
from corerl.nn.learner import Spec
from corerl.risk import measures
from corerl.runs.checkpoint import tensors_of
from corerl.training.rollouts import STOCK_LIMIT, Played, RiskPlayer

SMALL = {"hidden_width": 8, "lr": 1e-2, "cosine": False, "max_steps": T, "critic_updates": 2}
SWITCHES = {
    "cvar": {"objective": "cvar", "tau": 0.4, "discount": 0.9, "v_rate": 0.3, "scale": 2.0},
    "blind": {"objective": "cvar", "tau": 0.4, "augment": False, "entropy": 0.1},
    "variance": {"objective": "variance", "discount": 0.9, "scale": 2.0},
    "mean_variance": {"objective": "mean_variance", "weight": 0.7, "scale": 2.0, "trace": 0.6},
    "entropic": {"objective": "entropic", "beta": 0.5, "discount": 0.9, "scale": 2.0},
    "mean": {"objective": "mean"},
    "ecrm": {"objective": "ecrm", "weight": 0.6, "discount": 0.9, "scale": 2.0, "trace": 0.6},
    "ecrm now": {"objective": "ecrm", "eta": "now", "weight": 0.6, "entropy": 0.1},
}


def agent_of(seeds=SEEDS, discrete=True, **changes):
    ecrm = {"low": -1.0, "high": 2.0, "etas": 4} if changes.get("objective") == "ecrm" else {}
    cfg = Config(**(SMALL | ecrm | changes))
    return CVaRPG(cfg, Spec(O, A, seeding.generators(range(seeds), "init"), discrete=discrete))


def level(tau=1.0, std=0.5, v_std=0.0):
    dtype = torch.get_default_dtype()
    return Level(*(torch.tensor(x, dtype=dtype) for x in (tau, std, v_std)))


def episodes_of(played: Played, v, etas, seed: int) -> list[tuple]:
    rows = []
    for e in range(E):
        n = int(played.alive[seed, e].sum())
        parts = (played.observations, played.actions, played.rewards)
        observations, actions, rewards = (x[seed, e, :n].tolist() for x in parts)
        rows.append((observations, actions, rewards, float(v[seed, e]), etas[seed, e, :n].tolist()))
    return rows


@pytest.mark.parametrize("discrete", [True, False], ids=["numbers", "vectors"])
@pytest.mark.parametrize("switch", SWITCHES)
def test_five_updates_equal_the_equations(switch, discrete, tolerance):
    agent = agent_of(discrete=discrete, **SWITCHES[switch])
    scramble(agent.policy, agent.critic)
    mine = [(agent.policy, s) for s in range(SEEDS)], [(agent.critic, s) for s in range(SEEDS)]
    nets = zip(*([net(*pair) for pair in pairs] for pairs in mine), strict=True)
    references = [PolicyGradient(p, c, agent.cfg, discrete) for p, c in nets]
    tau = agent.cfg.tau or 1.0
    for played, v, etas in make_played(5, discrete):
        metrics = agent.update(played, v / agent.cfg.scale, etas, level(tau))
        for s, theirs in enumerate(references):
            found = theirs.update(episodes_of(played, v, etas, s), tau, 0.5)
            mine = {name: float(metrics[name][s]) for name in found}
            assert mine == pytest.approx(found, rel=tolerance, abs=tolerance)
            if "v" in metrics:
                assert float(metrics["v"][s]) == pytest.approx(theirs.v, abs=2 * tolerance)
    for s, theirs in enumerate(references):
        assert_networks(net(agent.policy, s), numbers(theirs.policy), tolerance)
        assert_networks(net(agent.critic, s), numbers(theirs.critic), tolerance)


@pytest.mark.parametrize(
    ("settings", "best", "risk"),
    [  # of the returns 1, 2, 4, 5
        ({"objective": "cvar", "tau": 0.25}, 2.0, -1.0),  # at an atom's end, the upper quantile
        ({"objective": "cvar", "tau": 0.625}, 4.0, -(1 + 2 + 0.5 * 4) / 2.5),
        ({"objective": "cvar", "tau": 1.0}, 5.0, -3.0),
        ({"objective": "variance"}, 3.0, 2.5),
        ({"objective": "mean_variance", "weight": 0.2}, 3.0, -2.5),
        ({"objective": "entropic", "beta": math.log(2)}, None, None),
        ({"objective": "mean"}, 3.0, -3.0),
    ],
)
def test_risks_by_hand(settings, best, risk):
    agent = agent_of(1, **settings)
    returns, tau = torch.tensor([[4.0, 1.0, 5.0, 2.0]]), torch.tensor(agent.cfg.tau or 1.0)
    if best is None:  # log2 of the mean of 2^-x: (1/2 + 1/4 + 1/16 + 1/32) / 4
        risk = math.log2((0.5 + 0.25 + 0.0625 + 0.03125) / 4)
        best = -risk
    v = agent.risk.best_v(returns, tau)
    assert float(v) == pytest.approx(best, abs=1e-6)
    found = agent.risk.score(returns - v, tau).mean() - (
        v if settings["objective"] != "variance" else 0
    )
    assert float(found) == pytest.approx(risk, abs=1e-6)
    for other in (best - 0.3, best + 0.3):
        shift = other if settings["objective"] != "variance" else 0
        worse = agent.risk.score(returns - other, tau).mean() - shift
        assert float(worse) >= risk - 1e-6


def one_episode(rewards):
    alive = torch.ones(1, 1, len(rewards))
    zeros = torch.zeros(1, 1, len(rewards), O)
    return Played(zeros, zeros[..., 0].long(), torch.tensor([[rewards]]), alive)


def test_conditional_rewards_by_hand():
    """weight 1/2, tau 1/4, discount 1/2; etas of the grid -1, 0, 1, 2."""
    ahead, now = (
        agent_of(1, objective="ecrm", eta=eta, weight=0.5, tau=0.25, discount=0.5, max_steps=2)
        for eta in ("ahead", "now")
    )
    etas, tau = torch.tensor([[[2, 3]]]), torch.tensor(0.25)  # 1, then 2
    played = one_episode([3.0, -1.0])
    found = ahead.scored(played, torch.zeros(1, 1), etas, tau)
    # 3 + .5*.5*1; then -.5 - .5*(1+1)*4 + .5*.5*(2 - 2*4)
    torch.testing.assert_close(found, torch.tensor([[[3.25, -6.0]]]))
    found = now.scored(played, torch.zeros(1, 1), etas, tau)
    # 1.5 + .5*1; then -.5 + .5*(2 - 3*4)
    torch.testing.assert_close(found, torch.tensor([[[2.0, -5.5]]]))


def test_the_gradient_is_that_of_cvar():
    """Every outcome of lock-in under the even policy as often as it is likely: the loss's gradient in the
    logits of the state after 0 is that of the exact CVaR, 2/5 and 1.9, by p and 1 - p at p = 1/2."""

    def exact(p: float, tau: float) -> float:
        """CVaR of the return where risky has probability p after 0 and 1/2 after 4."""
        atoms = {-2: 0.15 * p, 1: 0.5 * (1 - p), 4: 0.35 * p, 2: 0.075, 5: 0.25, 8: 0.175}
        left, total = tau, 0.0
        for x in sorted(atoms):
            taken = min(left, atoms[x])
            total, left = total + x * taken, left - taken
        return total / tau

    for tau in (0.2, 0.5, 0.9):
        agent = agent_of(1, objective="cvar", tau=tau, max_steps=2, hidden_layers=0)
        outcomes = [
            (first, action, reward)
            for first in (0.0, 4.0)
            for action, rewards in ((0, [1.0] * 10), (1, [4.0] * 7 + [-2.0] * 3))
            for reward in rewards
        ]
        rows = torch.tensor([[[f, r] for f, _, r in outcomes]])
        actions = torch.tensor([[[0, a] for _, a, _ in outcomes]])
        observations = torch.zeros(1, 40, 2, O)
        observations[:, :, 1, 0] = (
            rows[..., 0] == 0
        ).float()  # the state after 0 is the first feature
        played = Played(observations, actions, rows, torch.ones_like(rows))
        v = agent.risk.best_v(rows.sum(-1), torch.tensor(tau))[:, None].expand(1, 40)
        with torch.no_grad():
            for p in agent.policy.parameters():
                p.zero_()
        gained = agent.scored(played, v, torch.zeros(1, 40, 2).long(), torch.tensor(tau))
        inputs = torch.cat([observations, torch.zeros(1, 40, 2, 2)], -1)
        tail = gained.flip(-1).cumsum(-1).flip(-1)  # no baseline
        loss, _ = agent.policy_loss(inputs, played, actions, tail, torch.tensor(1.0))
        (slope,) = torch.autograd.grad(loss.sum(), agent.policy.body.layers[0].weight)
        derivative = (exact(0.5 + 1e-6, tau) - exact(0.5 - 1e-6, tau)) / 2e-6
        # p = sigmoid(logit), dp/dlogit = 1/4; a loss is minimised
        assert float(slope[0, 0, 1]) == pytest.approx(-derivative / 4, abs=1e-4)


def test_both_rates_fall_to_nothing_over_the_runs_updates():
    """Half a cosine, the critic's over `critic_updates` as many: after one update of two, one half."""
    cfg = Config(**SMALL | {"cosine": True, "critic_lr": 4e-3})
    agent = CVaRPG(
        cfg, Spec(O, A, seeding.generators(range(SEEDS), "init"), steps=2, discrete=True)
    )
    played, v, etas = make_played(1, True)[0]
    agent.update(played, v, etas, level())
    rates = [float(x.lr) for x in (agent.policy_optimizer, agent.critic_optimizer)]
    assert rates == pytest.approx([0.5e-2, 2e-3])


def test_a_run_begins_at_the_first_level(monkeypatch):
    shares, at = [], Level.at
    monkeypatch.setattr(
        Level, "at", lambda cfg, share, device: shares.append(share) or at(cfg, share)
    )
    tiny.Short(replace(tiny.settings("cvar_pg"), steps=4), [0])
    assert shares == [0.0, 0.25, 0.5, 0.75]


def test_the_level_falls_softly():
    cfg = Config(tau=0.2, soft=0.5, std=0.4, std_final=0.1, v_std=2.0)
    found = [[float(x) for x in Level.at(cfg, share)] for share in (0.0, 0.25, 0.5, 1.0)]
    expected = [[1.0, 0.4, 2.0], [0.6, 0.4 / 2**0.5, 1.5], [0.2, 0.2, 1.0], [0.2, 0.1, 0.0]]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("switch", ["cvar", "ecrm", "ecrm now", "mean"])
def test_a_player_sees_what_the_update_reconstructs(switch):
    agent = agent_of(**(SWITCHES[switch] | {"v_std": 1.0}))
    draws = torch.randn(SEEDS, T + 1, E, 2, generator=torch.Generator().manual_seed(0))
    player = RiskPlayer(agent, level(v_std=1.0), draws)
    played, *_ = make_played(1, True)[0]
    player.begin(SEEDS, E)
    seen = []
    for t in range(T):
        seen.append(player.memory())
        player(played.observations[:, :, t])
        player.reward(played.rewards[..., t])
    etas = torch.stack(player.etas, -1)
    rebuilt = agent.memory(played, player.v, etas)
    alive = played.alive[..., None].bool()
    torch.testing.assert_close(rebuilt * alive, torch.stack(seen, 2) * alive)
    assert len({round(float(x), 6) for x in player.v.flatten()}) == SEEDS * E
    spread = draws[:, 0, :, 0] / agent.cfg.scale  # v_std is of raw returns
    torch.testing.assert_close(player.v - agent.v()[:, None], spread)


def long_episodes(made: int) -> Played:
    """Four episodes of so many of 1,000 steps; the first earns nothing: at v = 0 its stock is 0."""
    rng = torch.Generator().manual_seed(0)
    alive = (torch.arange(1_000) < made).float().expand(1, 4, -1)
    observations, rewards = torch.randn(1, 4, 1_000, O, generator=rng), alive.clone()
    rewards[0] *= torch.tensor([0.0, 1.0, -1.0, 0.3])[:, None]
    return Played(observations * alive[..., None], 0 * alive.long(), rewards, alive)


@pytest.mark.parametrize("made", [20, 1_000])
def test_no_weight_is_lost_where_the_discounts_power_is_0(made):
    """0.9 ** 1000 is 0 in float32, and the stock is divided by it: NaN or infinite where not kept."""
    agent, played = agent_of(1, discount=0.9, max_steps=1_000), long_episodes(made)
    agent.update(played, torch.zeros(1, 4), 0 * played.actions, level(0.4))
    assert all(x.isfinite().all() for x in tensors_of(agent.state_dict()).values())


def test_the_player_and_the_update_keep_stocks_to_one_range_and_change_none_within():
    agent, played = agent_of(1, discount=0.9, max_steps=1_000), long_episodes(1_000)
    player, seen = RiskPlayer(agent), []
    player.begin(1, 4)
    for rewards in played.rewards.unbind(-1):
        seen.append(player.memory())
        player.reward(rewards)
    seen, rebuilt = torch.stack(seen, 2), agent.memory(played, player.v, torch.zeros(0))
    for stock in (seen[..., 0], rebuilt[..., 0]):
        assert stock[0, :, -1].tolist() == [0.0, -STOCK_LIMIT, STOCK_LIMIT, -STOCK_LIMIT]
    powers = 0.9 ** torch.arange(1_000.0)
    before = torch.nn.functional.pad((powers * played.rewards).cumsum(-1)[..., :-1], (1, 0))
    plain = (0 - before) / powers
    assert plain[0, :, 100].abs().max() < STOCK_LIMIT
    assert torch.equal(rebuilt[..., :100, 0], plain[..., :100])


def test_v_actions_and_etas_have_draws_of_their_own():
    agent, seen = agent_of(**SWITCHES["ecrm"]), torch.zeros(SEEDS, E, O)
    draws = torch.randn(SEEDS, T + 1, E, 2, generator=torch.Generator().manual_seed(0))
    player = RiskPlayer(agent, level(), draws)
    player.begin(SEEDS, E)
    for t in range(1, 3):
        logits = agent.policy(torch.cat([seen, player.memory()], -1))
        found = player(seen), player.etas[-1]
        uniforms = torch.special.ndtr(draws[:, t]).unbind(-1)  # those at 0 spread v
        for mine, theirs, uniform in zip(found, logits, uniforms, strict=True):
            assert torch.equal(mine, policies.draw_number(theirs, uniform))
        player.reward(torch.zeros(SEEDS, E))


def test_vectors_spread_around_the_policys_by_the_levels_deviation():
    agent, seen = agent_of(discrete=False, **SWITCHES["ecrm"]), torch.ones(SEEDS, E, O)
    scramble(agent.policy)
    draws = torch.randn(SEEDS, T + 1, E, A + 1, generator=torch.Generator().manual_seed(0))
    player = RiskPlayer(agent, level(std=0.7, v_std=3.0), draws)
    player.begin(SEEDS, E)
    middle, _ = agent.policy(torch.cat([seen, player.memory()], -1))
    torch.testing.assert_close(player(seen), middle + 0.7 * draws[:, 1, :, :A])


@pytest.mark.parametrize("discrete", [True, False])
def test_an_evaluated_policy_plays_what_is_likeliest(discrete):
    agent, seen = agent_of(discrete=discrete, **SWITCHES["ecrm"]), torch.ones(SEEDS, E, O)
    scramble(agent.policy)
    player = RiskPlayer(agent)
    player.begin(SEEDS, E)
    for _ in range(2):
        actions, etas = agent.policy(torch.cat([seen, player.memory()], -1))
        likeliest = actions.max(-1).indices if discrete else actions
        assert torch.equal(player(seen), likeliest)
        assert torch.equal(player.etas[-1], etas.max(-1).indices) and player.etas[-1].any()
        player.reward(torch.zeros(SEEDS, E))


def test_actions_are_drawn_as_likely_as_the_policy_says():
    logits = torch.tensor([[[0.0, math.log(3.0), math.log(4.0)]]]).expand(1, 8000, 3)
    uniform = torch.rand(1, 8000, generator=torch.Generator().manual_seed(0))
    counts = torch.bincount(policies.draw_number(logits, uniform)[0], minlength=3) / 8000
    torch.testing.assert_close(counts, torch.tensor([1, 3, 4]) / 8, atol=0.015, rtol=0)


def test_a_level_that_means_nothing_is_left_out():
    assert Config(objective="variance").tau is None


# As a run.


def settings(root, task="risk/D2", own=None, **changes):
    algo = Config(**({"episodes": 8, "max_steps": 5, "hidden_width": 8} | (own or {})))
    cell = {"steps": 12, "eval": Eval(every=6, episodes=3), "log_every": 4, "save_every": 4}
    cell |= {"device": "cpu", "compile": "off", "root": str(root)}
    return RunConfig(algo=algo, task=task, **(cell | changes))


def of_table(task: str) -> tuple[dict, dict]:
    """The settings that configs/cvar_pg.yaml has for a task: the algorithm's, and the run's."""
    rows = {k: v for k, v in table("cvar_pg", task).items() if not k.startswith("eval.")}
    own = {k.removeprefix("algo."): v for k, v in rows.items() if k.startswith("algo.")}
    return own, {k: v for k, v in rows.items() if not k.startswith("algo.")}


def learned(root, task: str, seeds, **own):
    """The agent at the end of a run with the settings of the table."""
    table_own, rest = of_table(task)
    rest |= {"eval": Eval(episodes=0), "log_every": 1000, "save_every": 10**6, "seeds": 3}
    cfg = settings(root, task, table_own | own, **rest)
    state = state_of(run(cfg, seeds))["agent"]
    discrete = task in ("risk/A", "risk/B")
    sizes = {"risk/A": (4, 2), "risk/B": (6, 2)}.get(task, (2, 1))
    rngs = seeding.generators(seeds, "init")
    agent = CVaRPG(cfg.algo, Spec(*sizes, rngs, steps=10, discrete=discrete))
    agent.load_state_dict(state)
    return agent


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("tau", [0.25, 0.5])
def test_one_gamble(tmp_path, tau):
    agent = learned(tmp_path, "risk/D1", [0, 1, 2], tau=tau)
    player = RiskPlayer(agent)
    player.begin(3, 1)
    a = (1 + player(torch.zeros(3, 1, 2))) / 2
    print("a", a.flatten().tolist())
    assert (a.flatten() - mdps.gamble_optimum(tau)[0]).abs().max() < 0.03


def played_twice(agent, seed: int, count: int = 1_000_000) -> np.ndarray:
    """Returns of the evaluated policy of two gambles, in numpy's own random numbers."""
    rng, player, seeds = np.random.default_rng(seed), RiskPlayer(agent), len(agent.v())
    player.begin(seeds, count)
    collected = torch.zeros(seeds, count)
    for t in range(2):
        seen = torch.stack([torch.full_like(collected, t / 2), collected], -1)
        a = ((1 + player(seen).squeeze(-1)) / 2).clamp(0, 1)
        xi = torch.from_numpy(rng.standard_normal((seeds, count))).float()
        reward = a - a**2 / 2 + 0.5 * a * xi
        player.reward(reward)
        collected = collected + reward
    return collected.numpy()


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("tau", "open_loop"), [(0.25, 0.303156), (0.5, 0.515388)])
def test_two_gambles_beat_every_plan(tmp_path, tau, open_loop):
    """The best policy that does not see the first reward has this CVaR (Gaussian, closed form)."""
    agent = learned(tmp_path, "risk/D2", [0, 1, 2], tau=tau)
    found = [measures.cvar(x, tau) for x in played_twice(agent, 0)]
    print("CVaR", found)
    assert min(found) > open_loop


def test_of_several_budgets_the_largest_is_not_missed_by_rounding():
    """Any from the third to the fourth of 37 returns is a 3/37-quantile; in float32 3/37 * 37 is below 3."""
    best = ScoringFunction("cvar", 0.0, 0.0).best_v(torch.arange(37.0)[None], torch.tensor(3 / 37))
    assert best.item() == 3
