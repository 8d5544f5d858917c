"""Every setting of every algorithm by itself, at values that people mistype or scripts compute."""

import dataclasses
import importlib
import math
from collections.abc import Iterator

import pytest

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
    *("explore_steps", "reset_updates", "random_actions", "logit_weight", "future"),
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
