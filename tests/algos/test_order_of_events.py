"""What `train` does and when: random beginnings, warm-ups, copies, relabelling, and which numbers go where.

A transcription of an update sees none of it, and a resumed run repeats whatever it is.
"""

from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch

from corerl import seeding
from corerl.algos.codac import CODAC
from corerl.algos.iql import IQL
from corerl.algos.iqn import IQN
from corerl.algos.md3qn import MD3QN
from corerl.algos.mrq import MRQ
from corerl.algos.oraac import ORAAC
from corerl.algos.pref_iql import PrefIQL
from corerl.algos.pref_transformer import RewardModel
from corerl.algos.qr_dqn import QRDQN
from corerl.algos.rebrac import ReBRAC
from corerl.algos.rlpd import RLPD
from corerl.algos.sac import SAC
from corerl.algos.spot import SPOT
from corerl.algos.td3_bc import TD3BC
from corerl.algos.wsrl import WSRL
from corerl.buffers.prioritized import PrioritizedReplay
from corerl.training.offline_to_online import Online

SEEDS = (0, 1)


def run(name: str, steps: int = 60, **own) -> tiny.Short:
    return tiny.Short(replace(tiny.settings(name, **own), steps=steps), SEEDS)


def names(log: list) -> list[str]:
    return [name for name, _ in log]


def stored(part: tiny.Short, count: int) -> torch.Tensor:
    """The first actions of Pendulum's replay, behind three observations."""
    return part.parts["replay"]._rows[:, :count, 3:4]


def uniform_actions(count: int) -> torch.Tensor:
    stream = seeding.uniform(SEEDS, "random actions", (1, 1))
    return torch.stack([2 * stream.next()[:, 0] - 1 for _ in range(count)], 1)


def test_sac_is_random_for_ten_steps_and_learns_from_the_eleventh_on(calls):
    log = calls(SAC, "explore update")
    made = run("sac", 14)
    assert names(log) == ["explore", "update"] * 4
    torch.testing.assert_close(stored(made, 10), uniform_actions(10))
    assert uniform_actions(10).min() < -0.5  # both halves of the range
    assert not torch.equal(stored(made, 11), uniform_actions(11))


def test_rlpd_is_random_in_its_warm_up_and_draws_the_policys_noise_apart(calls):
    log = calls(RLPD, "explore update")
    made = run("rlpd", 14)
    assert names(log) == ["explore", "update"] * 4
    torch.testing.assert_close(stored(made, 10), uniform_actions(10), rtol=0, atol=1e-4)
    for _, (_, draws) in log[1::2]:
        assert draws.next_actions.shape[1] == 2
        assert not any(torch.equal(draws.actions, x) for x in draws.next_actions.unbind(1))


@pytest.mark.parametrize(("best", "count"), [(False, 1), (True, 3)])
def test_wsrl_pre_trains_warms_up_and_fine_tunes(calls, best, count):
    """K actions make a backup online where `online_max_backup` asks for the best of K."""
    log = calls(WSRL, "update explore finetune")
    run("wsrl", 40, samples=3, online_max_backup=best)
    assert names(log) == ["update"] * 20 + ["explore"] * 10 + ["explore", "finetune"] * 10
    for _, (_, draws) in log[31::2]:
        assert draws.backups.shape[1:3] == (2, count)
        assert not torch.equal(draws.actions, draws.next_actions)


def test_mrq_copies_before_updates_1_9_and_17_and_then_trains_its_encoders(calls, monkeypatch):
    log, add = calls(MRQ, "explore copy_targets update_encoder update"), PrioritizedReplay.add

    def ended(self, step):
        """Pendulum has no terminal; here the first seed has met one."""
        add(self, step)
        self.terminated[0] = 1

    monkeypatch.setattr(PrioritizedReplay, "add", ended)
    made = run("mrq", 10 + 17)
    copy = ["copy_targets", *["update_encoder"] * 8]
    expected = []
    for number in range(1, 18):
        expected += ["explore", *(copy if number in (1, 9, 17) else ()), "update"]
    assert names(log) == expected
    torch.testing.assert_close(stored(made, 10), uniform_actions(10))
    lengths = {(name, args[0].actions.shape[2]) for name, args in log if name[0] in "ru"}
    assert lengths == {("update_encoder", 5), ("update", 3)}
    assert made.parts["replay"].horizon == 5  # which leaves room for either
    for name, args in log:
        assert name != "update_encoder" or args[1].tolist() == [1, 0]
    (size,) = [args for name, args in log if name == "copy_targets"][-1]
    rewards = made.parts["replay"]._rows[
        :, :26, 4
    ]  # before step 27; behind observations and action
    torch.testing.assert_close(size, rewards.abs().mean(1))


def test_mrq_gives_the_steps_that_it_drew_their_new_priorities(calls):
    log = calls(PrioritizedReplay, "prioritise")
    replay = run("mrq", 10 + 3).parts["replay"]
    assert names(log) == ["prioritise"] * 3
    places, priorities = log[-1][1]
    assert torch.isin(replay._priorities.gather(1, places), priorities).all()


def test_a_target_is_copied_after_the_update_of_its_step(calls):
    """A step in two from the 21st on; a copy every eighth."""
    log = calls(QRDQN, "update copy_target")
    run("qr_dqn", 40)
    expected = []
    for step in range(2, 41, 2):
        expected += ["update"] * (step > 20) + ["copy_target"] * (step % 8 == 0)
    assert names(log) == expected


@pytest.mark.parametrize(
    ("cls", "name", "own"),
    [
        (SAC, "sac", {"utd": 3}),
        (RLPD, "rlpd", {"utd": 3}),
        (WSRL, "wsrl", {"utd": 3}),
        (TD3BC, "td3_bc", {"policy_delay": 3}),
        (ReBRAC, "rebrac", {"policy_delay": 3}),
        (SPOT, "spot", {"policy_delay": 3, "vae_steps": 3}),
        (ORAAC, "oraac", {"policy_delay": 3}),
    ],
)
def test_critic_updates_of_a_call_have_batches_and_noise_of_their_own(calls, cls, name, own):
    log = calls(cls, "finetune" if name == "wsrl" else "update")
    run(name, {"sac": 11, "rlpd": 11, "wsrl": 31, "spot": 6}.get(name, 3), **own)
    *_, (_, (batches, noises, *_)) = log
    if name in ("rlpd", "wsrl"):
        noises = (noises.next_actions if name == "rlpd" else noises.backups).unbind(1)
    noises = [x.next_actions if hasattr(x, "next_actions") else x for x in noises]
    for drawn in ([batch.actions for batch in batches], noises):
        assert len(drawn) == 3
        assert not any(torch.equal(drawn[i], drawn[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


def test_rebracs_penalty_falls_from_the_switch_on_by_a_calls_first_update(calls):
    """40 steps of the environment from 21 on, of which ten warm up: at step 31, 30 of them are left."""
    log = calls(ReBRAC, "update")
    online = Online(pretrain_steps=20, warmup_steps=10, offline_ratio=0.5)
    run("rebrac", phase="both", online=online, policy_delay=2)
    shares = [args[2].tolist() for _, args in log]
    assert shares[:10] == [[1, 1]] * 10 and len(shares) == 10 + 15
    falling = [max(0.5, (60 - step + 1) / 40) for step in range(31, 60, 2)]
    assert [x for x, _ in shares[10:]] == pytest.approx(falling)
    assert all(critics == 0 for _, critics in shares[10:])


@pytest.mark.parametrize("restart", [False, True])
def test_spot_fits_its_density_then_pre_trains_and_fine_tunes(calls, restart):
    """8 steps of the density and 12 of the policy, then 40 of the environment, two in a call.

    What is left of the weight is counted after a call's last step, as CORL has it.
    """
    log = calls(SPOT, "fit restart_optimizers update")
    own = {"phase": "both", "online": Online(pretrain_steps=20), "online_discount": 0.5}
    run("spot", **own, vae_steps=8, policy_delay=2, restart_optimizers=restart)
    restarts = ["restart_optimizers"] * restart
    assert names(log) == ["fit"] * 4 + ["update"] * 6 + restarts + ["update"] * 20
    changed = [args[2] for name, args in log if name == "update"]
    left = [max(0.2, (60 - step) / 40) for step in range(22, 61, 2)]
    assert [x.share.item() for x in changed] == pytest.approx([1.0] * 6 + left)
    assert [x.discount.item() for x in changed] == pytest.approx([0.99] * 6 + [0.5] * 20)


@pytest.mark.parametrize(("shared", "rows"), [(True, 1), (False, 8)])
def test_oraacs_fractions_are_of_a_batch_or_a_row_and_its_rates_end_at_zero(calls, shared, rows):
    log = calls(ORAAC, "update")
    made = run("oraac", policy_delay=3, shared_fractions=shared, cosine=True)
    assert len(log) == 20 and log[0][1][2][0].shape[1] == rows
    agent = made.parts["agent"]
    for optimizer in (agent.actor_optimizer, agent.critic_optimizer):
        assert float(optimizer.lr) == pytest.approx(0, abs=1e-9)
    assert agent.vae_optimizer.lr == made.cfg.algo.vae_lr


@pytest.mark.parametrize(("cls", "name", "normal"), [(IQN, "iqn", 0), (CODAC, "codac", 1)])
def test_fractions_and_proposals_are_uniform(calls, cls, name, normal):
    """CODAC's noise stands before them."""
    log = calls(cls, "update")
    run(name)
    draws = [torch.cat([x.flatten() for x in column]) for column in zip(*(a[1:] for _, a in log))]  # noqa: B905
    assert all(x.min() < -1 and x.max() > 1 for x in draws[:normal])
    for x in draws[normal:]:
        deciles = x.histc(10, 0, 1) / x.numel()  # which leaves out what lies elsewhere
        torch.testing.assert_close(deciles, torch.full((10,), 0.1), rtol=0, atol=0.05)


def test_md3qns_rate_falls_over_its_updates(calls):
    """Of 60 steps every second has an update, behind the 20 random ones."""
    made = run("md3qn", cosine=True)
    agent = made.parts["agent"]
    at = [float(agent.schedule._factor(torch.tensor(float(k)))) for k in (0, 10, 20)]
    assert at == pytest.approx([1, 0.5, 0], abs=1e-6)
    assert len(made.metrics) == 20 and float(agent.optimizer.lr) == pytest.approx(0, abs=1e-9)


def test_md3qns_uniform_policy_is_drawn_anew_for_every_row_of_every_update(calls):
    log = calls(MD3QN, "update")
    data = replace(tiny.settings("md3qn").algo.data, epsilon=1.0)
    run("md3qn", 30, policy="uniform", data=data)
    drawn = torch.stack([args[1] for _, args in log])
    assert drawn.shape[1:] == (2, 8) and len(drawn.unique()) == drawn.numel()
    assert 0 <= drawn.min() < 0.2 and 0.8 < drawn.max() < 1


@pytest.mark.parametrize("first", [True, False])
def test_pref_iql_fits_its_reward_for_so_many_steps_before_or_beside(calls, first):
    log = calls(PrefIQL, "fit_reward update")
    made = run("pref_iql", reward_first=first, cosine=True)
    both = ["fit_reward"] * 14 if first else ["fit_reward", "update"] * 14
    assert names(log) == both + ["update"] * 46
    assert float(made.parts["agent"].policy_optimizer.lr) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("keep", "size", "looks"),
    [("best", 21, (14, 10, 5)), ("best", 12, (14, 10)), ("last", 21, ())],
)
def test_preference_transformer_looks_every_five_epochs_and_relabels_once(calls, keep, size, looks):
    """20 comparisons are one batch of 21, hence an epoch a step, or two of 12; the last two are looked at."""
    log = calls(RewardModel, "update look rewards")
    calls(IQL, "update")
    cfg = tiny.settings("pref_transformer").algo
    reward = replace(cfg.reward, batch_size=size, keep=keep)
    preferences = replace(cfg.preferences, pairs=20)
    made = run("pref_transformer", reward=reward, preferences=preferences, cosine=True)
    fits = ["update"] * 14
    for step in looks:
        fits.insert(step, "look")
    assert {args[0].labels.shape[1] for name, args in log if name == "look"} == (
        {2} if looks else set()
    )
    assert names(log) == [*fits, "rewards", *["update"] * 46]
    recorded = torch.from_numpy(np.unique(made.dataset().rewards))
    (batch, *_) = log[-1][1]
    assert not torch.isin(batch.rewards, recorded).any()
    assert torch.isin(batch.rewards, made.parts["buffer"].rewards).all()
    assert float(made.parts["agent"].policy_optimizer.lr) == pytest.approx(0, abs=1e-9)
