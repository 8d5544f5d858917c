"""Settings that come from one line of some authors' scripts, composed as for a run."""

import math

import pytest
import torch
from agreement import generators
from small import cell

from corerl.algos.cal_ql import CalQL
from corerl.algos.cql import CQL
from corerl.algos.wsrl import WSRL
from corerl.launch.composition import cells
from corerl.nn.learner import Spec

KITCHEN = "d4rl/kitchen-partial-v0"
MAZE = "d4rl/antmaze-umaze-v2"


@pytest.mark.parametrize(("name", "agent"), [("cql", CQL), ("cal_ql", CalQL), ("wsrl", WSRL)])
def test_on_kitchen_all_that_pre_train_are_wsrls(name, agent):
    """zhouzypaul/wsrl at 891ee35: train_config.py, kitchen_cql, and what it leaves at its default."""
    cfg = cell(name, KITCHEN)
    algo = cfg.algo
    assert algo.max_backup in (True, "min_first")
    assert (algo.weight, algo.importance_sampling, algo.samples) == (5.0, False, 10)
    assert (algo.policy_layers, algo.critic_layers, algo.hidden_width) == (3, 3, 512)
    assert (algo.policy_lr, algo.critic_lr, algo.batch_size) == (1e-4, 3e-4, 256)
    assert (algo.data.clip_actions, algo.data.reward_shift) == (0.99999, -4.0)
    assert not algo.data.normalize_states
    assert (algo.data.end_reward == 4.0) == (name != "cql")  # whose data they leave as it is
    made = agent(algo, Spec(5, 2, generators(1)))
    assert made.critic.layers[-1].weight.shape == (1, 1, 512, 1)  # of both, or all ten
    for layer in (*made.policy.body.layers, *made.critic.layers):
        singular = torch.linalg.svdvals(layer.weight)
        torch.testing.assert_close(singular, torch.full_like(singular, 2**0.5))
    low, high = made.policy.limits
    assert (math.exp(low), math.exp(high)) == pytest.approx((1e-5, 10.0))
    assert not hasattr(made.policy, "multiplier")
    assert made.alpha.item() == pytest.approx(1.0)


def test_cql_goes_on_online_with_corls_settings():
    """corl-team/CORL at eeeeef2: configs/finetune/cql, and the initial weights of its file."""
    adroit, maze = cell("cql_finetune", "d4rl/door-cloned-v1"), cell("cql_finetune", MAZE)
    for cfg in (adroit, maze):
        algo = cfg.algo
        assert (cfg.steps, algo.phase, algo.online.pretrain_steps) == (2_000_000, "both", 1_000_000)
        assert (algo.max_backup, algo.gap_min, algo.gap_max) == ("min_first", -200.0, None)
        assert (algo.policy_lr, algo.data.normalize_states) == (1e-4, False)
        made = CQL(algo, Spec(5, 2, generators(1)))
        for layer in (*made.policy.body.layers, *made.critic.layers):
            singular = torch.linalg.svdvals(layer.weight)
            torch.testing.assert_close(singular, torch.full_like(singular, 2**0.5))
    assert (adroit.algo.weight, adroit.algo.lagrange, adroit.algo.critic_layers) == (1.0, "off", 3)
    assert (maze.algo.weight, maze.algo.lagrange, maze.algo.critic_layers) == (
        *(5.0, "young_geng"),
        5,
    )


def test_rlpd_beside_wsrl_is_wsrls_agent_without_pre_training():
    """Its launch_rlpd.sh, of locomotion."""
    cfg = cell("rlpd_wsrl", "d4rl/hopper-medium-replay-v2")
    algo = cfg.algo
    assert (algo.name, algo.phase, cfg.label) == ("wsrl", "online", "RLPD")
    assert (algo.utd, algo.utd * algo.batch_size, algo.critics, algo.critic_subsample) == (
        *(4, 1024, 10, 2),
    )
    assert (algo.online.offline_ratio, algo.online.warmup_steps) == (0.5, 5_000)
    assert (cfg.steps, cfg.eval.every, cfg.eval.episodes) == (300_000, 20_000, 20)
    assert (algo.layer_norm, algo.hidden_width, algo.last_hidden_gain) == (True, 256, 1e-2)
    assert (algo.policy_lr, algo.critic_lr, algo.online.capacity) == (1e-4, 3e-4, 2_000_000)
    assert algo.data.clip_actions == 0.99999 and algo.data.reward_shift == 0
    assert cell("rlpd_wsrl", "d4rl/antmaze-umaze-v2").algo.critic_subsample == 1
    for task in ("d4rl/antmaze-umaze-v2", "d4rl/kitchen-mixed-v0", "adroit/door-binary"):
        wsrl = cell("wsrl", task)
        online = wsrl.steps - wsrl.algo.online.pretrain_steps
        assert cell("rlpd_wsrl", task).steps == online == 500_000
    names = {cell.label or cell.algo.label for cell in cells(["sweep=wsrl_locomotion"])}
    tables = {cell.table for cell in cells(["sweep=wsrl_locomotion"])}
    assert (names, tables) == ({"WSRL", "RLPD"}, {None, "rlpd_wsrl"})


def test_cqn_beside_arsq_bootstraps_through_terminals_on_their_sets_alone():
    """ARSQ's authors' alg/cqn.py:682 discounts every step; on our sets a terminal ends."""
    for task in ("halfcheetah-medium-v2", "hopper-medium-v2", "walker2d-medium-expert-v2"):
        assert cell("cqn", f"d4rl/{task}").algo.terminals == "ignore"
    for task in ("mujoco/hopper-medium-regenerated", "mujoco/walker2d-medium-regenerated"):
        assert cell("cqn", f"corerl/{task}").algo.terminals == "end"
    assert cell("cqn", "corerl/mujoco/hopper-medium-regenerated").algo.levels == 2


def test_atari_with_rewards_by_source_is_evaluated_at_each_iteration():
    """MD3QN's authors': 250,000 agent steps; rewards are clipped by source, whoever adds them up."""
    found = cells(["sweep=md3qn_atari"])
    assert len(found) == 4 * 6
    assert {cfg.eval.every for cfg in found} == {250_000}
    assert {cfg.algo.data.clip for cfg in found} == {"source"}


def test_dqn_zoos_flags_for_atari():
    """`max_global_grad_norm` (qrdqn/run_atari.py), `min_replay_capacity_fraction` of 1e6 (both)."""
    qr_dqn, iqn = (cell(name, "atari/Pong").algo for name in ("qr_dqn", "iqn"))
    assert (qr_dqn.max_grad_norm, qr_dqn.data.learning_starts) == (10.0, 50_000)
    assert iqn.data.learning_starts == 20_000


def test_mrq_leaves_out_terminal_rewards_on_the_environments_of_its_curves_alone():
    for cfg in cells(["sweep=mrq_gym"]):
        assert not cfg.algo.terminal_reward, cfg.task
        assert (cfg.steps, cfg.eval.every, cfg.eval.episodes) == (1_000_000, 5_000, 10)
    assert cell("mrq", "gym/Pendulum-v1").algo.terminal_reward


@pytest.mark.parametrize(
    ("task", "limit"),
    [("pen-human-v1", 100), ("hammer-cloned-v1", 200), ("door-human-v1", 200)]
    + [("antmaze-umaze-diverse-v2", 700)]
    + [(f"{name}-v2", 1000) for name in ("hopper-medium-replay", "antmaze-medium-play")],
)
def test_preference_transformers_rewards_span_the_episodes_limit(task, limit):
    """Its train_offline.py:81 and :117."""
    algo = cell("pref_transformer", f"d4rl/{task}").algo
    assert algo.data.return_range and 1000 * algo.data.reward_scale == pytest.approx(limit)
    assert algo.reward.scale == "none"
    if limit < 700:
        assert (algo.beta, algo.expectile, algo.dropout) == (0.5, 0.7, 0.1)


def test_tianshou_s_benchmark_has_sac_with_a_fixed_temperature():
    """thu-ml/tianshou at e605bde: examples/mujoco/mujoco_sac.py, run as it is (run_experiments.sh)."""
    algo = cell("sac_tianshou", "gym/Hopper-v4").algo
    assert (algo.learn_temperature, algo.initial_temperature) == (False, 0.2)
    assert (algo.actor_lr, algo.critic_lr, algo.batch_size) == (1e-3, 1e-3, 256)
    assert (algo.discount, algo.polyak, algo.actor_q) == (0.99, 0.005, "min")
    assert (algo.random_steps, algo.utd, algo.actor_every) == (10_000, 1, 1)
    assert (algo.hidden_layers, algo.hidden_width, algo.init) == (2, 256, "torch")
    assert (algo.log_std_min, algo.log_std_max, algo.capacity) == (-20.0, 2.0, 1_000_000)
