"""Every setting of every algorithm by itself, at values that people mistype or scripts compute."""

import dataclasses
import importlib
import math
from collections.abc import Iterator

import pytest
import wording

from corerl import algos
from corerl.config import Config, Settings
from corerl.errors import CorerlError

NEVER = {float: (math.nan, math.inf, -math.inf, 1e30, -1e30), int: (10**18, 10**30, -(10**18))}
"""No setting takes these, but that a generator's seed may be huge."""
MAY_BE_NEGATIVE = {
    *("behaviour_floor", "log_std_min", "log_std_max", "low", "high", "margin", "threshold"),
    *("target_entropy", "gap_min", "gap_max", "log_std_multiplier", "failure_reward", "eta"),
    *("reward_scale", "reward_shift", "shifts", "end_reward", "targets", "budget", "best_score"),
}
MAY_BE_ZERO = {
    *MAY_BE_NEGATIVE,
    # Weights of terms, where 0 leaves the term out.
    *("weight", "bellman_weight", "behaviour_weight", "bc_weight", "critic_weight", "imitation"),
    *("dominance_weight", "margin_weight", "actor_bc_coef", "critic_bc_coef", "weight_decay"),
    *("dynamics_weight", "reward_weight", "end_weight", "replay_weight", "bc_coef", "flatness"),
    *("entropy", "kl_weight", "bonus_scale", "perturbation", "guidance", "contrast", "penalty"),
    *("edit_scale", "coefficient", "initial_multiplier", "policy_weight", "value_weight"),
    *("unseen_weight", "policy_radius", "value_radius", "unseen_radius", "rise_weight"),
    *("pessimism", "pessimism_min", "pessimism_decay", "encoding", "mask", "vae_weight"),
    *("prior", "dimension", "preference_weight", "norm_weight", "frequency_weight", "q_scale"),
    *("min_q", "rest", "uncertainty", "least", "rise", "top", "radius"),
    # Noise, dropped shares and probabilities.
    *("noise", "policy_noise", "noise_clip", "dropout", "leak", "epsilon", "eval_epsilon", "skip"),
    *("return_noise", "target_noise", "target_clip", "priority_power", "smallest_priority"),
    *("equal", "explore", "soft", "v_std", "v_std_final", "min_bc_share", "offline_ratio"),
    *("min_weight_share", "exploration", "hindsight", "state_noise", "whole"),
    *("discount", "online_discount", "polyak", "ema", "trace", "v_rate", "alpha", "beta", "kappa"),
    *("base_polyak", "spread", "high_alpha", "low_alpha", "eps"),
    # Shares of goals.
    *("value_p_curgoal", "value_p_randomgoal", "actor_p_curgoal", "actor_p_randomgoal", "augment"),
    # Counts of what need not be.
    *("hidden_layers", "policy_layers", "seed", "race", "bc_steps", "ema_start", "validate_every"),
    *("pretrain_steps", "warmup_steps", "warmup", "episodes", "save_minutes", "last_hidden_gain"),
    *("explore_steps", "reset_updates", "random_actions", "logit_weight", "future", "log_floor"),
}


FREE = {"name", "label", "checkpoint", "path", "sha256", "snapshots", "task"}
"""Texts that are no choice of a few."""


def numbers(settings) -> Iterator[tuple[tuple[str, ...], type]]:
    """Where every number, or list of them, of the settings stands, and which kind it is."""
    return ((path, kind) for path, kind in places(settings) if kind is not str)


def places(settings, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], type]]:
    """Where every number and text of the settings stands, and which kind it is."""
    for field in dataclasses.fields(settings):
        value, kind = getattr(settings, field.name), str(field.type)
        if dataclasses.is_dataclass(value):
            yield from places(value, (*path, field.name))
        elif isinstance(value, bool):
            continue
        elif "str" in kind:
            yield (*path, field.name), str
        elif "float" in kind or isinstance(value, float):
            yield (*path, field.name), float
        elif "int" in kind or isinstance(value, int):
            yield (*path, field.name), int


def changed(settings, path: tuple[str, ...], value):
    first, *rest = path
    (field,) = (field for field in dataclasses.fields(settings) if field.name == first)
    inner = [value] if "list" in str(field.type) else value
    if rest:
        inner = changed(getattr(settings, first), tuple(rest), value)
    return dataclasses.replace(settings, **{first: inner})


def refused(settings, path: tuple[str, ...], value) -> bool:
    try:
        changed(settings, path, value)
    except CorerlError as error:
        assert "\n" not in str(error) and path[-1] in str(error)
        return True
    return False


def taken(settings: Settings) -> list[tuple[str, float]]:
    """What is accepted and should not be."""
    found = list(numbers(settings))
    assert found
    wrong = []
    for path, kind in found:
        values = () if path[-1] == "seed" else NEVER[kind]
        if path[-1] not in MAY_BE_ZERO:
            values = (*values, kind(0))
        if path[-1] not in MAY_BE_NEGATIVE:
            values = (*values, kind(-1))
        wrong += [(".".join(path), value) for value in values if not refused(settings, path, value)]
    return wrong


@pytest.mark.parametrize("name", algos.names())
def test_a_number_that_no_run_could_use_is_refused_by_name(name):
    settings = importlib.import_module(f"corerl.algos.{name}").Config()
    assert isinstance(settings, Settings), "its settings declare no ranges"
    assert not taken(settings)


def test_so_are_those_that_algorithms_share():
    bc = importlib.import_module("corerl.algos.bc").Config()
    cfg = Config(algo=bc, task="corerl/pendulum")
    assert not taken(cfg)
    for seeds in (0, -1, 10**18, [10**30], [-1], math.nan, math.inf, 1e30):
        assert refused(cfg, ("seeds",), seeds)


@pytest.mark.parametrize("name", algos.names())
def test_a_word_that_is_none_of_the_choices_is_refused(name):
    settings = importlib.import_module(f"corerl.algos.{name}").Config()
    texts = [path for path, kind in places(settings) if kind is str and path[-1] not in FREE]
    assert [path for path in texts if not refused(settings, path, "other")] == []


SHARES = ("discount", "polyak")


@pytest.mark.parametrize("name", algos.names())
def test_a_share_is_at_most_one_and_a_rate_at_most_ten(name):
    settings = importlib.import_module(f"corerl.algos.{name}").Config()
    for path, _ in numbers(settings):
        if path[-1] in SHARES:
            assert refused(settings, path, 1.5)
        if path[-1] == "lr" or path[-1].endswith("_lr"):
            assert refused(settings, path, 10.5)


TOGETHER = [
    ("arsq", {"bins": 1}, "algo.bins"),
    ("arsq", {"online": {"offline_ratio": 0.5, "warmup_steps": 0}}, "warmup_steps=0"),
    ("arsq", {"phase": "both"}, "pretrain_steps"),
    ("arsq", {"alpha": 0.0}, "algo.alpha"),
    ("bcq_discrete", {"threshold": 1.0}, "algo.threshold=1.0 0 1"),
    ("cal_ql", {"critic_subsample": 3}, "algo.critic_subsample"),
    ("cal_ql", {"online": {"pretrain_steps": 5, "offline_ratio": None}}, "offline_ratio"),
    ("codac", {"tau": 2.0}, "algo.tau=2.0 0 1"),
    ("codac", {"penalty_fractions": 33}, "algo.penalty_fractions=33 algo.fractions=32"),
    ("cpl", {"alpha": 0.0}, "algo.alpha="),
    ("cpl", {"bias": 1.1}, "algo.bias="),
    ("cpl", {"reference": True, "bc_steps": 0}, "algo.reference="),
    ("cpl", {"warmup_steps": 0}, "algo.warmup_steps="),
    ("cpl", {"dropout": 1.0}, "algo.dropout="),
    (
        "cpl_ranked",
        {"ranked_by": "teacher", "preferences": {"source": "pt"}},
        "algo.preferences.source=pt",
    ),
    (
        "cpl_ranked",
        {"ranked_by": "teacher", "preferences": {"epsilon": 0.1}},
        "ranked_by=teacher",
    ),
    ("cql_official", {"backup_entropy": True, "max_backup": "per_critic"}, "algo.backup_entropy"),
    ("cqn", {"bins": 1}, "algo.bins"),
    ("cqn", {"atoms": 1}, "algo.atoms"),
    ("cqn", {"low": 2.0}, "algo.low=2.0 algo.high=2.0"),
    ("cqn", {"online": {"offline_ratio": 0.0, "warmup_steps": 0}}, "warmup_steps=0"),
    ("crr", {"pessimism": 1.0}, "algo.pessimism=1.0 0 1"),
    ("cvar", {"tau": 1.1}, "algo.tau=1.1"),
    ("cvar", {"low": 1.0, "high": 1.0}, "algo.low=1.0"),
    ("cvar", {"explore": 2.0}, "algo.explore"),
    ("cvar", {"stocks": 1}, "algo.stocks"),
    ("cvar", {"quantiles": 1}, "algo.quantiles"),
    ("cvar", {"objective": "iterated", "data": {"n_step": 3}}, "algo.data.n_step=1"),
    ("cvar", {"data": {"clip": "source"}}, "algo.data.clip"),
    ("cvar_offline", {"tau": 1.01}, "algo.tau=1.01 0 1"),
    ("cvar_offline", {"data": {"return_range": True}}, "algo.data.return_range=true"),
    ("cvar_pg", {"tau": 1.2}, "algo."),
    ("cvar_pg", {"tau": None}, "algo."),
    ("cvar_pg", {"objective": "ecrm"}, "algo."),
    ("cvar_pg", {"objective": "ecrm", "low": 1.0, "high": 0.0}, "algo."),
    ("cvar_pg", {"objective": "ecrm", "low": 0.0, "high": 1.0, "weight": 1.5}, "algo."),
    ("cvar_pg", {"beta": 0.0}, "algo."),
    ("cvar_pg", {"trace": 1.5}, "algo."),
    ("cvar_pg", {"discount": 0.0}, "algo."),
    ("cvar_tabular", {"weight": 2.0}, "algo.weight=2.0"),
    ("dr_rpo", {"eta": 0.0}, "algo.eta="),
    ("dt", {"targets": []}, "algo.targets"),
    ("dt", {"width": 9, "heads": 2}, "algo.width=9"),
    ("dtr", {"context": 1}, "algo.context=1 2"),
    ("dtr", {"width": 9, "heads": 2}, "algo.width=9 algo.heads=2"),
    ("dtr", {"eta": -1.0}, "algo.eta=-1.0"),
    ("dvl", {"divergence": "js"}, "algo.divergence=js chi2_exact"),
    ("dvl", {"loss_temperature": 1.5}, "algo.loss_temperature=1.5 algo.divergence=chi2 1"),
    ("dvl", {"divergence": "tv", "loss_temperature": 0.5}, "algo.loss_temperature=0.5 tv 0.5"),
    ("ela", {"delta": 1.0}, "algo.delta="),
    (
        "gcivl",
        {"goals": {"value_p_curgoal": 0.8}},
        "value_p_curgoal=0.8 value_p_randomgoal=0.3 1",
    ),
    ("goat", {"recent": 8, "batch_size": 16}, "algo.recent=8 algo.batch_size=16"),
    ("hra", {"hidden_layers": 0}, "algo."),
    ("icvar", {"tau": 2.0}, "algo.tau="),
    ("icvar", {"objective": "static"}, "algo.objective="),
    ("ipl", {"chi2": 0.0, "form": "xql"}, "algo.chi2="),
    ("ipl", {"chi2": -1.0, "target_clipping": False}, "algo.chi2="),
    ("ipl", {"expectile": 1.0}, "algo.expectile="),
    ("ipl", {"discount": 1.0}, "algo.discount="),
    ("ipl", {"replay_weight": 1.5}, "algo.replay_weight="),
    ("ipl", {"crop": 1}, "algo.crop="),
    ("ipl", {"crop": 65}, "algo.crop="),
    ("ipl", {"dropout": 1.0}, "algo.dropout="),
    ("ipl", {"dropout": 0.1, "form": "awac"}, "algo.dropout="),
    ("md3qn", {"particles": 1}, "algo."),
    ("md3qn", {"bandwidths": [0.0]}, "algo."),
    ("md3qn", {"policy": "uniform"}, "algo."),
    ("mrq", {"reward_bins": 1}, "algo.reward_bins"),
    ("mrq", {"random_steps": 5}, "5 algo.horizon algo.n_step"),
    ("mrq", {"capacity": 8, "n_step": 8}, "8"),
    ("oppo", {"crop": 40, "preferences": {"length": 20}}, "algo.crop=40"),
    ("oppo", {"width": 9}, "algo.width=9"),
    ("oraac", {"tau": 1.5}, "algo.tau=1.5 0 1"),
    ("oraac", {"tau": None}, "algo.tau=None"),
    ("oraac", {"objective": "wang"}, "algo.tau=null"),
    ("p2r", {"radius": 0.0}, "algo.radius="),
    ("pref_iql", {"crop": 1}, "algo.crop="),
    ("pref_iql", {"crop": 65}, "algo.crop="),
    ("pref_iql", {"expectile": 1.0}, "algo.expectile="),
    ("pref_iql", {"data": {"return_range": True}}, "algo.data.return_range=True"),
    ("pref_iql", {"phase": "both", "online": {"pretrain_steps": 10}}, "algo.phase=both"),
    ("pref_pessimistic", {"ranked": 1}, "algo.ranked="),
    ("pref_pessimistic", {"radius": "theorem", "ranked": 3}, "algo.radius="),
    ("pref_pessimistic", {"radius": "theorem", "bound": None}, "algo.radius="),
    (
        "pref_transformer",
        {"reward": {"width": 9, "heads": 2}},
        "algo.reward.width=9 algo.reward.heads=2",
    ),
    ("pref_transformer", {"reward": {"dropout": 1.0}}, "algo.reward.dropout=1.0 0 1"),
    ("pref_transformer", {"phase": "online"}, "phase=online"),
    ("qr_dqn", {"target_every": 10_001}, "algo."),
    ("qrl", {"latent_dim": 12}, "algo.latent_dim=12 8 iqe"),
    ("qrl", {"latent_dim": 13, "quasimetric": "mrn"}, "algo.latent_dim=13 2 mrn"),
    ("rlpd", {"critic_subsample": 11}, "algo.critic_subsample"),
    ("rlpd", {"online": {"offline_ratio": 0.5, "warmup_steps": 0}}, "warmup_steps"),
    ("sac", {"utd": 3, "actor_every": 2}, "algo."),
    ("spot", {"vae_steps": 7}, "algo.vae_steps=7 algo.policy_delay=2"),
    ("spot", {"kl_weight": 0.0}, "algo.kl_weight=0.0"),
    ("spot", {"phase": "online"}, "algo.phase=online"),
    (
        "spot",
        {"phase": "both", "online": {"pretrain_steps": 100_000}},
        "algo.online.pretrain_steps=100000 algo.vae_steps=100000",
    ),
    ("td3_awr", {"expectile": 1.0}, "algo.expectile=1.0 0 1"),
    ("two_atom", {"tau": 1.0}, "algo.tau="),
    ("two_atom", {"objective": "static"}, "algo.objective="),
    ("wsrl", {"online": {"pretrain_steps": 5, "warmup_steps": 0}}, "warmup_steps"),
    ("wsrl", {"online": {"warmup_steps": 5, "pretrain_steps": 0}}, "pretrain_steps"),
]
"""Numbers above an interval, and settings that exclude each other: what is refused must be named."""


@pytest.mark.parametrize(("name", "own", "words"), TOGETHER)
def test_settings_that_do_not_fit_are_refused(name, own, words):
    settings = importlib.import_module(f"corerl.algos.{name}").Config()
    with wording.refused(words):
        groups = {key: value for key, value in own.items() if isinstance(value, dict)}
        groups = {k: dataclasses.replace(getattr(settings, k), **v) for k, v in groups.items()}
        dataclasses.replace(settings, **own | groups)
