"""Settings by default and by task: the transcriptions read them, and cannot notice a wrong one.

The comments name the sources as the algorithms' files and configs/ do, from which these values were taken:
they guard against a change, and do not check the authors' files anew. What is nobody else's is named ours:
there a changed default is another experiment under the same name.
"""

import importlib
from operator import attrgetter
from typing import Any

import pytest

from corerl.launch.composition import cells

TD = {"discount": 0.99, "polyak": 0.005}
NET = {"batch_size": 256, "hidden_layers": 2, "hidden_width": 256}
TD3 = {**TD, **NET, "policy_noise": 0.2, "noise_clip": 0.5, "policy_delay": 2, "exploration": 0.1}
TD3 |= {"random_steps": 25_000, "capacity": 1_000_000, "lr": 3e-4}
GOALS = {
    "discount": 0.99,
    "lr": 3e-4,
    "batch_size": 1024,
    "hidden_layers": 3,
    "hidden_width": 512,
    "activation": "gelu_tanh",
    "value_layer_norm": True,
    "goals.value_p_curgoal": 0.2,
    "goals.value_p_randomgoal": 0.3,
    "goals.value_geom_sample": True,
    "goals.actor_p_curgoal": 0.0,
    "goals.actor_p_randomgoal": 0.0,
    "goals.actor_geom_sample": False,
    "goals.gc_negative": True,
}
DQN_ZOO = {  # DeepMind's qrdqn/run_atari.py and iqn/run_atari.py; 4 frames are a step
    "discount": 0.99,
    "target_every": 40_000 // 4,
    "lr": 5e-5,
    "adam_eps": 0.01 / 32,
    "batch_size": 32,
    "hidden_width": 512,
    "data.train_every": 16 // 4,
    "data.epsilon": 0.01,
    "data.eval_epsilon": 0.001,
    "data.capacity": 1_000_000,
    "data.learning_starts": 50_000,
    "data.n_step": 1,
}
DEFAULTS: dict[str, dict[str, Any]] = {
    # The authors' A2PR.py and utils/config.py.
    "a2pr": {"alpha": 2.5, "anchor": "better", "mask": 0.5, "vae_weight": 1.0, "vae_width": 750}
    | {"vae_lr": 1e-3, "lr": 3e-4, "actor_layers": 3, **TD, **NET, "hidden_layers": 4}
    | {"policy_noise": 0.2, "noise_clip": 0.5, "policy_delay": 2, "data.normalize_states": True},
    # The authors' D4RL release, cfgs/.
    "arsq": {"levels": 1, "bins": 41, "alpha": 0.1, "bellman_weight": 1.0, "behaviour": "lse"}
    | {"behaviour_weight": 5.0, "behaviour_floor": -1.0, "behaviour_temperature": 1.0}
    | {"behaviour_mean": "demos", "utd": 1, **TD, "act_with": "online", "lr": 3e-4}
    | {"batch_size": 256, "demos.rows": 256, "hidden_layers": 3, "hidden_width": 512}
    | {"phase": "online", "demos.share": 1.0, "online.offline_ratio": None},
    # CORL's awac.py.
    "awac": {"temperature": 1.0, "advantage_limit": 100.0, **TD, "lr": 3e-4, "batch_size": 256}
    | {"hidden_layers": 3, "hidden_width": 256, "log_std_min": -20.0, "log_std_max": 2.0},
    # The authors' main.py, for vectors.
    "bcq_discrete": {"threshold": 0.3, "logit_weight": 0.01, "kappa": 1.0, "target_every": 1, **TD}
    | {**NET, "batch_size": 64, "lr": 3e-4, "adam_eps": 1e-8},
    # The authors' train_offline.py and configs/d4rl_configs.json.
    "codac": {"objective": "naive", "tau": 0.1, "weight_limit": 5.0, "weight": 10.0}
    | {"threshold": 10.0, "samples": 10, "penalty_fractions": 1, "fractions": 32, "kappa": 1.0}
    | {**TD, "alpha": 0.2, "tune_alpha": False, "policy_lr": 3e-5, "critic_lr": 3e-4}
    | {"cosine": False, **NET, "cosines": 64},
    # The authors' train.py beside what tests/algos/test_preference_settings.py has.
    "cpl": {"warmup_steps": 10_000, "lr_factor": 1.0, "hidden_layers": 2, "policy": "deterministic"}
    | {"crop": None},
    # d3rlpy's reproduction, beside what tests/algos/test_crr.py has.
    "crr": {"filter": "binary", "samples": 4, "critics": 1, "pessimism": 0.5, **TD, **NET}
    | {"order": "critic_first", "norm_first": False, "init": "torch", "log_std_min": -20.0},
    # The release's RLBench settings.
    "cqn": {"levels": 3, "bins": 5, "atoms": 51, "low": -2.0, "high": 2.0, "critic_weight": 0.1}
    | {"dominance_weight": 1.0, "margin_weight": 1.0, "margin": 0.01, "utd": 1, "discount": 0.99}
    | {"terminals": "end", "polyak": 0.02, "noise": 0.01, "act_with": "target", "lr": 5e-5}
    | {"weight_decay": 0.1, "batch_size": 256, "demos.rows": 256, "features": 64}
    | {"hidden_layers": 2, "hidden_width": 512, "phase": "online"},
    # Ours.
    "cvar": {"objective": "static", "tau": 0.25, "explore": 0.5, "stocks": 201, "starts": 32}
    | {"race": 0, "cosines": 16, "critic": "quantile", "quantiles": 100, "kappa": 0.0}
    | {"cosine": False, "low": None, "high": None, **DQN_ZOO},
    # Ours; alpha, the delay and the noise are TD3+BC's.
    "cvar_offline": {"tau": 0.1, "start": "data", "start_stocks": 257, "stocks": 4, "alpha": 2.5}
    | {"imitation": 1.0, "fractions": 50, "kappa": 0.0, **TD, "policy_noise": 0.2}
    | {"noise_clip": 0.5, "policy_delay": 2, "lr": 3e-4, "cosine": False, **NET}
    | {"data.normalize_states": True},
    # Ours.
    "cvar_pg": {"objective": "cvar", "tau": 0.25, "weight": 1.0, "beta": 1.0, "soft": 0.0}
    | {"augment": True, "v_std": 0.0, "v_std_final": 0.0, "v_rate": 1.0, "eta": "ahead"}
    | {"etas": 21, "discount": 1.0, "episodes": 100, "max_steps": 1_000, "scale": 1.0}
    | {"trace": 1.0, "entropy": 0.0, "std": 0.5, "std_final": 0.05, "lr": 3e-3}
    | {"critic_lr": 3e-3, "cosine": True, "critic_updates": 5}
    | {"hidden_layers": 2, "hidden_width": 64},
    "cvar_tabular": {"objective": "static", "tau": 0.25, "weight": 1.0},
    # OGBench's impls/agents, as are all that learn to reach goals.
    "crl": {"actor_loss": "ddpg_bc", "alpha": 0.1, "latent_dim": 512, **GOALS}
    | {"goals.value_p_curgoal": 0.0, "goals.value_p_randomgoal": 0.0},
    "laeo": {"examples": 200, "over": "random", "alpha": 0.1, "latent_dim": 64, **GOALS}
    | {"goals.value_p_curgoal": 0.0, "goals.value_p_randomgoal": 0.0, **NET},
    "gcbc": {**GOALS, "goals.value_p_curgoal": 0.0, "goals.value_p_randomgoal": 0.0},
    "cfgrl_goals": {**GOALS, "goals.value_p_curgoal": 0.0, "goals.value_p_randomgoal": 0.0}
    | {"guidance": 3.0, "flow_steps": 16, "drop": 0.1, "hidden_layers": 4},
    # The authors' goat/algo/config.py and the command line's defaults of goat/run.py.
    "goat": {**GOALS, "goals.value_p_curgoal": 0.0, "goals.value_p_randomgoal": 0.0}
    | {"critics": 5, "beta": 2.0, "limit": 10.0, "top": 80.0, "rise": 0.01, "rest": 0.05}
    | {"top_of": "scaled", "recent": 50_000, "uncertainty": 1.5, "least": 0.5, "most": 1.0}
    | {"expectile": 0.5, "radius": 0.05, "discount": 0.98, "polyak": 0.0026, "lr": 5e-4}
    | {"batch_size": 512, "hidden_width": 256, "activation": "relu", "value_layer_norm": False},
    # OGBench's impls/agents again.
    "gciql": {"expectile": 0.9, "actor_loss": "ddpg_bc", "alpha": 0.3, "polyak": 0.005, **GOALS},
    "gcivl": {"expectile": 0.9, "alpha": 10.0, "polyak": 0.005, **GOALS},
    # The authors' IO.py and TD3_train_multiQ.py.
    "mex": {**TD3, "eta": 1e-3, "optimism": "data"},
    "rrs": {**TD3, "shifts": [-0.5, 0.0, 0.5], "turn": 1_000, "ends": "shifted"},
    "td3": TD3,
    "hiql": {"expectile": 0.7, "high_alpha": 3.0, "low_alpha": 3.0, "subgoal_steps": 25}
    | {"rep_dim": 10, "polyak": 0.005, **GOALS},
    "qrl": {"quasimetric": "iqe", "latent_dim": 512, "eps": 0.05, "actor_loss": "ddpg_bc"}
    | {"alpha": 0.003, **GOALS, "goals.value_p_curgoal": 0.0, "goals.value_p_randomgoal": 1.0},
    # Ours.
    "dr_rpo": {"kind": "kl", "scale": 0.5, "reference": "uniform", "eta": 0.1, "beta": 0.1}
    | {"bonus": "factors", "ridge": 1.0},
    # Ours.
    "sqirl": {"lookahead": 1, "discount": 1.0, "episodes": 20, "max_steps": 100, "updates": 200}
    | {"lr": 1e-3, "max_norm": 10.0, "batch_size": 128, "hidden_layers": 2, "hidden_width": 64},
    # Ours, but for the authors' rate.
    "subpo": {"weights": "gains", "baseline": "others", "episodes": 100, "max_steps": 100}
    | {"entropy": 0.1, "lr": 1e-2, "hidden_layers": 2, "hidden_width": 64, "activation": "tanh"},
    # Ours.
    "spo": {"queue": 10, "teacher": "return", "beta": None, "reward_scale": 1.0},
    # DPPO's train.py.
    "dppo": {"temperature": 0.1, "contrast": 1.0, "length": 100, "ranked_by": "model", "lr": 3e-4}
    | {"batch_size": 256, "hidden_layers": 2, "hidden_width": 256, "dropout": 0.0},
    # TU2021/DTR's command line and config, which are QT's.
    "dtr": {"eta": 1.0, "bc_coef": 1.0, **TD, "ema": 0.005, "ema_every": 5, "ema_start": 1_000}
    | {"context": 20, "return_scale": 10.0, "max_timestep": 1000, "layers": 4, "heads": 4}
    | {"width": 256, "critic_layers": 3, "activation": "relu", "dropout": 0.1, "lr": 3e-4}
    | {"lr_every": 1_000, "weight_decay": 1e-4, "max_grad_norm": 9.0, "batch_size": 256}
    | {"repeats": 10, "return_noise": 0.1, "trajectories": "episodes", "clip_actions": 0.999},
    # The authors' command for Gym, and their mujoco_config.py.
    "dvl": {"divergence": "chi2", "loss_temperature": 1.0, "random_actions": 1, "clip": 5.0}
    | {"beta": 3.0, "advantage_limit": 100.0, "huber": 20.0, "lr": 3e-4, "cosine": True, **TD}
    | {**NET, "batch_size": 1024, "value_layer_norm": True, "dropout": 0.0, "log_std_min": -5.0},
    # CORL's edac.py, sac_n.py.
    "edac": {"critics": 10, "eta": 1.0, **TD, "policy_lr": 3e-4, "critic_lr": 3e-4}
    | {"alpha_lr": 3e-4, **NET, "hidden_layers": 3, "order": "alpha_actor_critic", "init": "corl"},
    # Ours, but for delta's meaning.
    "ela": {"tau": 0.25, "planner": "exact", "unit": 0.25, "bonus_scale": 0.01, "delta": 0.1},
    # MD3QN's authors'.
    "hra": {"sources": "all", "bootstrap": "own", "padding": "same", "hidden_layers": 1, **DQN_ZOO},
    # Ours, but for delta's meaning.
    "icvar": {"kind": "linear", "tau": 0.25, "net": 0.05, "bonus_scale": 0.03, "delta": 0.1}
    | {"ridge": 1.0, "pairs": 5},
    # The authors' code, beside what tests/algos/test_preference_settings.py has.
    "ipl": {**TD, "advantage_limit": 100.0, "min_target": False, "gumbel_scale": 1.0}
    | {"gumbel_limit": 7.0, "dropout": 0.0, "log_std_min": -5.0, "log_std_max": 2.0},
    # K is the paper's; dqn_zoo has 64.
    "iqn": {"fractions": 64, "target_fractions": 64, "policy_fractions": 32, "cosines": 64}
    | {"risk": 1.0, "kappa": 1.0, "double": False, "hidden_layers": 1, **DQN_ZOO},
    # MD3QN's authors' bandwidth v3, kscale v11 and network v21.
    "md3qn": {"particles": 200, "sources": "all", "policy": "greedy", "estimator": "v"}
    | {"kernel_weight": "sqrt", "distance": "mean", "bandwidths": [2.0**i for i in range(-8, 9)]}
    | {"padding": "same", "cosine": False, "hidden_layers": 1, **DQN_ZOO},
    # One set of constants: the paper's and the authors' code's.
    "mrq": {"horizon": 5, "dynamics_weight": 1.0, "reward_weight": 0.1, "end_weight": 0.1}
    | {"reward_bins": 65, "reward_limit": 10.0, "discount": 0.99, "n_step": 3}
    | {"terminal_reward": True, "target_every": 250, "target_noise": 0.2, "target_clip": 0.3}
    | {"flatness": 1e-5, "priority_power": 0.4, "smallest_priority": 1.0, "random_steps": 10_000}
    | {"noise": 0.2, "capacity": 1_000_000, "encoder_lr": 1e-4, "policy_lr": 3e-4}
    | {"critic_lr": 3e-4, "weight_decay": 1e-4, "max_norm": 20.0, "batch_size": 256}
    | {"hidden_width": 512, "action_width": 256},
    # The authors' family_learner.py, and IQL.
    "famo2o": {"low": 1.0, "high": 5.0, "encoding": 6, "encoding_base": 10_000.0, **TD, **NET}
    | {"balance_lr": 3e-4, "temperature_lr": 3e-4, "initial_temperature": 1.0, "lr": 3e-4}
    | {"target_entropy": -0.5, "advantage_limit": 100.0, "expectile": 0.7, "log_std_min": -5.0},
    # The authors' json_params; tau is the paper's.
    "oraac": {"objective": "naive", "tau": 0.1, "eta": -0.75, "perturbation": 0.25, **TD}
    | {"imitation": True, "fractions": 32, "policy_fractions": 8, "shared_fractions": True}
    | {"kappa": 1.0, "policy_delay": 2, "kl_weight": 0.5, "latent_clip": 0.5, "actor_lr": 1e-4}
    | {"critic_lr": 1e-3, "vae_lr": 1e-3, "cosine": False, "batch_size": 128, "hidden_width": 256}
    | {"actor_widths": [400, 300], "vae_width": 750, "activation": "relu"},
    # IPL's authors' configs/, beside what tests/algos/test_preference_settings.py has.
    "pref_iql": {"critic_loss": "mean", "reward.steps": 20_000, "reward.members": 1, "crop": 64}
    | {"reward.bounded": False, "reward.batch_size": 8, "reward.stop_accuracy": None}
    | {"reward.lr": 3e-4, "reward.score": "sum", "reward_first": False, "replay": True}
    # WiseRL's Hindsight PRIOR, which is off.
    | {"reward.prior": 0.0, "world.steps": 10_000, "world.layers": 3, "world.heads": 1}
    | {"world.width": 256, "world.dropout": 0.1, "world.lr": 3e-4, "world.batch_size": 64},
    # The width is what works in the paper's example. Ours, but for the theorem's meaning of delta.
    "pref_pessimistic": {"policy": "pessimistic", "likelihood": "rankings", "comparisons": 200}
    | {"ranked": 2, "bound": 2.0, "radius": "fixed", "width": 3.0, "delta": 0.1, "ridge": 0.01}
    | {"reference": "compared"},
    # Ours.
    "p2r": {"feedback": "preferences", "segment": "step", "comparisons": 1_000, "tolerance": 0.1}
    | {"radius": 0.1, "ridge": 0.01, "bonus_scale": 0.2, "beta": 0.1, "delta": 0.1},
    # The authors' flags and code.
    "pref_transformer": {"reward.attention": True, "reward.keep": "best", "reward.window": 100}
    | {"reward.clip_actions": 0.999, "reward.steps": 20_000, "reward.dropout": 0.1}
    | {"reward.lr": 1e-3, "reward.warmup": 0.1, "reward.weight_decay": 1e-4}
    | {"reward.batch_size": 256, "data.return_range": True, "data.clip_actions": 1 - 1e-5},
    # The paper's.
    "dqn": {"kappa": 1.0, "double": False, "hidden_layers": 1, **DQN_ZOO},
    # The paper's 200 quantiles.
    "qr_dqn": {"quantiles": 200, "kappa": 1.0, "double": False, "hidden_layers": 1, **DQN_ZOO},
    # Ours.
    "orpo": {"penalty": "chi2", "coefficient": 0.3, "measure": "state_action"},
    # The authors' code for people's labels; the deviation of z* is from their experiment.py.
    "oppo": {"crop": None, "latent": 16, "latent_std": 2.0, "preference_weight": 10.0}
    | {"norm_weight": 0.1, "norm": "hinge", "state_noise": 0.1, "context": 100, "layers": 3}
    | {"max_timestep": 1000, "heads": 2, "width": 128, "activation": "relu", "dropout": 0.1}
    | {"lr": 1e-4, "latent_lr": 1e-2, "warmup_steps": 10_000, "weight_decay": 1e-4}
    | {"max_grad_norm": 0.25, "batch_size": 64},
    # Ours.
    "orpo_sac": {"penalty": "chi2", "coefficient": 0.1, "measure": "state_action", "recent": 2_000}
    | {"clip": 5.0, "discriminator_lr": 3e-4},
    # BPref's train_PEBBLE.py and its configs, but for 0.0025, which is 0.005 every second update.
    "pebble": {"polyak": 0.0025, "initial_temperature": 0.1, "random_steps": 1_000}
    | {"explore_steps": 5_000, "neighbours": 5, "reset_updates": 100, "batch_size": 1024}
    | {"actor_lr": 1e-4, "critic_lr": 1e-4, "temperature_lr": 1e-4, "hidden_width": 1024}
    | {"hidden_layers": 2, "log_std_min": -5.0, "queries.budget": 1_400, "queries.at_once": 128}
    | {"queries.every": 5_000, "queries.length": 50, "queries.epochs": 200}
    | {"queries.stop_accuracy": 0.97, "queries.candidates": 10, "reward.members": 3}
    | {"reward.hidden_layers": 3, "reward.hidden_width": 256, "reward.lr": 3e-4}
    | {"reward.batch_size": 128},
    # Ours, but for the rounds.
    "pref_mixture": {"policy": "max_min", "groups": 2, "comparisons": 100, "bound": 10.0}
    | {"rounds": 60, "starts": 5, "eta": 0.1, "iterations": 1_000},
    # The authors' main.py.
    "r2pvi": {"kind": "tv", "scale": 0.1, "beta": 1.0, "ridge": 0.1, "penalty": "factors"}
    | {"least": "states", "rewards": "known"},
    # Ours.
    "reload": {"gradient": "optimistic", "budget": None, "eta": 0.5, "eta_mu": 0.5, "spread": 0.1},
    # CORL's fine-tuning, beside what tests/algos/test_paper_settings.py has.
    "rebrac": {"stale_actor_target": True, "min_bc_share": 0.5, "online.offline_ratio": 0.5},
    # The authors' ro2o_mujoco.py and ro2o_ft_mujoco.py.
    "ro2o": {"policy_weight": 1.0, "value_weight": 1e-4, "unseen_weight": 0.1, "eta": 0.0, **TD}
    | {"policy_radius": 0.01, "value_radius": 0.01, "unseen_radius": 0.01, "perturbations": 20}
    | {"rise_weight": 0.8, "pessimism": 1.0, "pessimism_min": 0.1, "pessimism_decay": 5e-7}
    | {"critics": 10, **NET, "hidden_layers": 3, "policy_lr": 3e-4, "critic_lr": 3e-4}
    | {"alpha_lr": 3e-4, "data.normalize_states": True, "online.warmup_steps": 2_500}
    | {"online.offline_ratio": 0.0, "online.capacity": 250_000},
    # The authors' README and code.
    "rlpd": {"utd": 20, "critics": 10, "critic_subsample": 2, "layer_norm": True, **TD, **NET}
    | {"backup_entropy": True, "actor_q": "mean", "initial_temperature": 1.0}
    | {"target_entropy": None, "actor_lr": 3e-4, "critic_lr": 3e-4, "temperature_lr": 3e-4}
    | {"log_std_min": -20.0, "log_std_max": 2.0, "phase": "online", "online.warmup_steps": 5_000}
    | {"online.offline_ratio": 0.5, "data.clip_actions": 1 - 1e-5},
    # The paper's table 1; ten episodes at random are softlearning's.
    "sac": {**TD, **NET, "initial_temperature": 1.0, "learn_temperature": True, "actor_q": "min"}
    | {"target_entropy": None, "random_steps": 10_000, "utd": 1, "actor_every": 1}
    | {"capacity": 1_000_000, "actor_lr": 3e-4, "critic_lr": 3e-4, "temperature_lr": 3e-4}
    | {"log_std_min": -20.0, "log_std_max": 2.0},
    # The authors' code, beside what tests/algos/test_spot.py has.
    "spot": {"weight": 1.0, "dropout": 0.1, "vae_steps": 100_000, "exploration": 0.1, **TD, **NET}
    | {"online_discount": None, "min_weight_share": 0.2, "restart_optimizers": False},
    # unifloral's defaults, and a beta of its search.
    "td3_awr": {"beta": 3.0, "advantage_limit": 100.0, "expectile": 0.7, "actor_bc_coef": 0.001}
    | {"critic_bc_coef": 0.01, **TD, "policy_noise": 0.2, "noise_clip": 0.5, "critic_updates": 2}
    | {"actor_lr": 1e-3, "critic_lr": 1e-3, "adam_eps": 1e-5, "batch_size": 1024}
    | {"hidden_layers": 3, "hidden_width": 256, "layer_norm": True, "critic_layer_norm": True},
    # The authors' code, beside what tests/algos/test_paper_settings.py has.
    "td3_bc": {"lr": 3e-4, **NET},
    # Ours, but for tau's meaning.
    "two_atom": {"objective": "safe", "tau": 0.25, "tie": 1e-9},
    # The authors' scripts: what all benchmarks share.
    "wsrl": {
        "utd": 4,
        "zero_steps": True,
        "online_max_backup": False,
        "weight": 5.0,
        **TD,
        "batch_size": 256,
    }
    | {"samples": 10, "policy_layers": 2, "critic_layers": 2, "hidden_width": 256}
    | {"importance_sampling": True, "calibrate": True, "lagrange": False}
    | {"threshold": 0.8, "max_backup": True, "critics": 10, "critic_subsample": 2}
    | {"layer_norm": True, "policy_lr": 1e-4, "critic_lr": 3e-4, "last_hidden_gain": 1e-2}
    | {"policy_std": "state", "std_min": 1e-5, "std_max": 10.0, "phase": "both"}
    | {"online.pretrain_steps": 250_000, "online.warmup_steps": 5_000, "online.capacity": 2_000_000}
    | {"online.offline_ratio": 0.0, "data.clip_actions": 1 - 1e-5},
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults_stay_what_they_are(name):
    cfg = importlib.import_module(f"corerl.algos.{name}").Config()
    assert {key: attrgetter(key)(cfg) for key in DEFAULTS[name]} == DEFAULTS[name]


AT_ONCE = {"levels": 1, "bins": 41}
TWICE = {"levels": 2, "bins": 7}
PAPERS_ENTROPY = {"tune_alpha": True, "target_entropy": -3.0}
TASKS: list[tuple[str, str, dict[str, Any]]] = [
    # ARSQ-main/d4rl, cfgs/.
    ("arsq", "halfcheetah-medium-v2", {"alpha": 0.01, "behaviour": "lse", "behaviour_weight": 1.0}),
    (
        "arsq",
        "walker2d-medium-replay-v2",
        {"behaviour": "margin", "behaviour_weight": 0.1} | AT_ONCE,
    ),
    ("arsq", "hopper-medium-v2", {"behaviour": "lse", "behaviour_weight": 0.5} | TWICE),
    (
        *("arsq", "hopper-medium-replay-v2"),
        {"behaviour": "margin", "behaviour_weight": 0.03, "behaviour_floor": 1.0} | TWICE,
    ),
    ("arsq", "hopper-medium-expert-v2", {"behaviour_weight": 2.0, "behaviour_floor": -1.0} | TWICE),
    ("arsq", "walker2d-medium-v2", {"behaviour_weight": 10.0, "behaviour_floor": 0.0} | AT_ONCE),
    # The same, of the baseline.
    (
        *("cqn", "walker2d-medium-v2"),
        {"low": 0.0, "high": 4000.0, "critic_weight": 1.0, "margin": 1.0, "polyak": 0.005}
        | {"noise": 0.1, "lr": 1e-4, "weight_decay": 0.0, "dominance_weight": 1.0}
        | AT_ONCE,
    ),
    ("cqn", "hopper-medium-expert-v2", {"margin_weight": 0.1, "dominance_weight": 0.01} | TWICE),
    ("cqn", "hopper-medium-replay-v2", {"margin_weight": 1.0, "dominance_weight": 1.0} | TWICE),
    # CORL's files.
    ("awac", "hopper-medium-v2", {"temperature": 0.3333, "data.normalize_states": True}),
    ("awac", "pen-human-v1", {"temperature": 0.1, "data.reward_shift": 0.0}),
    ("awac", "antmaze-umaze-v2", {"temperature": 0.1, "data.reward_shift": -1.0}),
    ("edac", "halfcheetah-medium-v2", {"critics": 10, "eta": 1.0}),
    ("edac", "walker2d-medium-expert-v2", {"critics": 10, "eta": 5.0}),
    ("edac", "hopper-medium-v2", {"critics": 50, "eta": 1.0}),
    ("edac", "pen-human-v1", {"critics": 20, "eta": 1000.0}),
    ("edac", "pen-cloned-v1", {"critics": 20, "eta": 10.0}),
    ("edac", "door-cloned-v1", {"critics": 50, "eta": 200.0}),
    (
        *("cql", "antmaze-umaze-v2"),
        {"weight": 5.0, "lagrange": "young_geng", "threshold": 0.8, "max_backup": "min_first"}
        | {"gap_min": -200.0, "policy_lr": 1e-4, "critic_layers": 5, "policy_layers": 3}
        | {"data.reward_scale": 10.0, "data.reward_shift": -5.0},
    ),
    ("cql", "door-human-v1", {"weight": 1.0, "policy_lr": 1e-4, "lagrange": "off"}),
    # configs/d4rl_configs.json.
    ("codac", "halfcheetah-medium-v2", {"weight": 10.0, "threshold": 10.0, "tune_alpha": False}),
    ("codac", "hopper-medium-v2", {"weight": 10.0, "policy_lr": 3e-5} | PAPERS_ENTROPY),
    ("codac", "walker2d-medium-replay-v2", {"weight": 1.0, "policy_lr": 3e-6} | PAPERS_ENTROPY),
    (
        *("codac", "halfcheetah-medium-expert-v2"),
        {"weight": 0.1, "threshold": None, "policy_lr": 3e-4, "tune_alpha": False},
    ),
    # nakamotoo/Cal-QL, scripts/*.sh.
    (
        *("cal_ql", "antmaze-large-play-v2"),
        {"data.reward_scale": 10.0, "data.reward_shift": -5.0, "failure_reward": 0.0}
        | {"critic_layers": 4, "policy_layers": 2, "hidden_width": 256, "lagrange": True}
        | {"weight": 5.0, "threshold": 0.8, "online.pretrain_steps": 1_000_000},
    ),
    (
        *("cal_ql", "adroit/pen-binary"),
        {"data.reward_scale": 10.0, "data.reward_shift": 5.0, "failure_reward": -1.0}
        | {"critic_layers": 3, "policy_layers": 2, "hidden_width": 512, "lagrange": False}
        | {"weight": 1.0, "online.pretrain_steps": 20_000, "online.offline_ratio": 0.5},
    ),
    # QT's eta, clip and K.
    ("dtr", "halfcheetah-medium-v2", {"eta": 5.0, "max_grad_norm": 15.0, "context": 5}),
    ("dtr", "halfcheetah-medium-expert-v2", {"eta": 0.4, "max_grad_norm": 15.0, "context": 20}),
    ("dtr", "hopper-medium-v2", {"eta": 1.0, "max_grad_norm": 9.0, "context": 20}),
    ("dtr", "walker2d-medium-v2", {"eta": 2.0, "max_grad_norm": 5.0, "context": 20}),
]


@pytest.mark.parametrize(("name", "task", "expected"), TASKS)
def test_a_tasks_settings_stay_what_they_are(name, task, expected):
    (cfg,) = cells([f"algo={name}", f"task={task if '/' in task else f'd4rl/{task}'}"])
    assert {key: attrgetter(key)(cfg.algo) for key in expected} == expected
