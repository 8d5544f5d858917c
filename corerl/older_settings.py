"""Old names of settings, and settings that left an algorithm's file, so that older run folders are read."""

from typing import Any, NamedTuple

RENAMED = {
    "algo.asked": "algo.critic_subsample",
    "algo.advantage_limit": "algo.max_weight",
}
"""Settings by the names that they had, and have. Command lines, tables and run folders of either name are
understood, and a run's hash is over the older, so that it is found."""


class Left(NamedTuple):
    """Settings that left an algorithm's file with a variant.

    Attributes:
        defaults: their values in runs that are not the variant's.
        gone: settings that the variant's file does not have.
        choices: values of other settings that only the variant takes.
        hashed: whether the defaults are still part of a run's name.
    """

    variant: str
    defaults: dict[str, Any]
    gone: tuple[str, ...] = ()
    choices: tuple[tuple[str, str], ...] = ()
    hashed: bool = False


_TD3_BC = Left(
    "td3_bc_neorl2", {"actor_first": False, "raw_critic": False}, ("actor_first", "raw_critic")
)
_IQL = Left(
    "iql_ogbench",
    {"squash": True, "advantage": "target", "stale_target": False, "critic_layer_norm": False},
    (
        *("squash", "advantage", "stale_target", "critic_layer_norm", "order", "critic_loss"),
        *("init", "policy", "dropout", "cosine", "log_std_min", "log_std_max"),
    ),
)
_CQL = Left(
    "cql_official",
    {"order": "joint", "bc_steps": 0, "backup_entropy": False},
    choices=(
        *(("lagrange", "official"), ("max_backup", "per_critic")),
        *(("init", "official"), ("init", "torch")),
    ),
    hashed=True,
)
LEFT = {
    "cql": _CQL,
    "bc": Left("bc_neorl2", {"squash": True, "leak": 0.0, "validate_every": 0}, ("squash",)),
    **dict.fromkeys(("td3_bc", "a2pr"), _TD3_BC),
    **dict.fromkeys(("iql", "famo2o", "pref_iql", "pref_transformer"), _IQL),
}
"""What has left an algorithm's file. Run folders of before are understood."""


def renamed(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns nested settings, as a run wrote them down, under the names that they have today."""
    if not prefix and isinstance(settings.get("algo"), dict):
        settings = settings | {"algo": _of_its_own_file(settings["algo"])}
    return {
        RENAMED.get(prefix + name, prefix + name).removeprefix(prefix): (
            renamed(value, f"{prefix}{name}.") if isinstance(value, dict) else value
        )
        for name, value in settings.items()
    }


def _of_its_own_file(algo: dict[str, Any]) -> dict[str, Any]:
    """Returns an algorithm's settings without those that have `LEFT`, as the variant's where they were set.

    A variant that lacks some of them fixes their values, so that all must have been set.
    """
    left = LEFT.get(str(algo.get("name")))
    if left is None:
        return algo
    others = [k for k, default in left.defaults.items() if algo.get(k, default) != default]
    chosen = others or any(algo.get(k) == value for k, value in left.choices)
    if len(others) == len(left.defaults) or (chosen and not left.gone):
        return {k: algo[k] for k in algo if k not in left.gone} | {"name": left.variant}
    return algo if others else {k: algo[k] for k in algo if k not in left.defaults}
