"""Evaluates policies on a dataset: a table of estimates, with what each of them rests on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

import numpy as np
import torch

from corerl.config import require
from corerl.data.dataset import Dataset
from corerl.errors import CorerlError, nearest
from corerl.ope import estimators, intervals
from corerl.ope.behaviour import Behaviour, fitted, recorded
from corerl.ope.distribution import ReturnLaw
from corerl.ope.estimators import Model
from corerl.ope.fqe import FQE, Settings
from corerl.ope.judgement import IMPOSSIBLE, Judgement, Options, Row
from corerl.ope.kernels import log_kernel
from corerl.ope.logs import Logs, Weights, effective
from corerl.ope.policies import Policy


def check_methods(methods: Sequence[str]) -> None:
    """Raises CorerlError for a method that does not exist."""
    for name in methods:
        if name not in estimators.METHODS:
            known = ", ".join(estimators.METHODS)
            hint = nearest(name, estimators.METHODS)
            raise CorerlError(f"There is no method {name!r}.{hint} Known: {known}.")


def judge(
    policy: Policy,
    dataset: Dataset,
    methods: Sequence[str],
    options: Options | None = None,
    *,
    device: torch.device | str = "cpu",
    show: Callable[[int, np.ndarray], None] | None = None,
) -> Judgement:
    """Estimates by each of `methods` for each of the S policies.

    `show(step, loss)` follows the fitting of FQE's critics.

    Raises:
        CorerlError: the policy, the data, the horizon or the weights do not allow it, and why.
    """
    options = options or Options()
    check_methods(methods)
    laws = [name for name in methods if name in estimators.LAWS]
    require(
        not laws or options.interval == "bootstrap",
        f"interval={options.interval} does not exist for {' and '.join(laws)}, which have only "
        "bootstrap intervals. Choose interval=bootstrap, or leave these methods out",
    )
    policy.check(dataset)
    logs = Logs.of(
        *(dataset, options.discount, options.horizon),
        leave_out_cut=options.leave_out_cut,
        keep_cut=not estimators.weighs(methods),
    )
    facts = {
        "policy": policy.description,
        "return": _return(logs, options),
        "interval": _interval(options),
    }
    if options.upper is not None:
        facts["upper"] = f"{options.upper:.12g}"
    if options.seed:
        facts["seed"] = str(options.seed)
    weights = behaved = None
    if estimators.weighs(methods):
        behaved = _behaviour(dataset, options, device)
        facts["propensities"] = behaved.source
        if options.clip is not None:
            facts["clipping"] = f"weights are clipped at their {options.clip:g} quantile"
        relative = set(methods) <= {*estimators.NORMALISED, "fqe"}
        weights = _weights(policy, dataset, logs, behaved, options, facts, relative=relative)
    models = None
    if set(methods) & set(estimators.NEEDS_MODEL):
        corrected = bool(set(methods) & (set(estimators.NEEDS_MODEL) - {"fqe"}))
        models = _models(policy, dataset, logs, options, device, show, facts, corrected=corrected)
    rows = []
    for i, seed in enumerate(policy.seeds):
        for name in methods:
            mine = None if weights is None else weights[i]
            model = None if models is None else models[i]
            rows += _rows(seed, name, logs, mine, model, dataset.rewards, options)
    return Judgement(rows, facts, options.discount)


def _rows(
    seed: int,
    name: str,
    logs: Logs,
    weights: Weights | None,
    model: Model | None,
    rewards: np.ndarray,
    options: Options,
) -> list[Row]:
    ess, clipped = _support(name, logs, weights)
    shared = (logs.episodes, ess, clipped)
    if name in estimators.LAWS:
        law = ReturnLaw(logs, weights, normalised=estimators.LAWS[name], upper=options.upper)
        note = _of_mass(law)
        mlp_options = law.intervals(options.statistics, options.level, seed=options.seed)
        return [
            Row(seed, name, of, law.statistic(of), *bounds, *shared, note)
            for of, bounds in zip(options.statistics, mlp_options, strict=True)
        ]
    terms = estimators.ESTIMATORS[name](logs, weights, model)
    low, high = intervals.interval(
        terms, options.interval, options.level, bounds=options.bounds, seed=options.seed
    )
    steps = np.inf if name == "fqe" and not options.finite else logs.rewards.shape[1]
    note = _impossible(name, terms.value, rewards, steps, options.discount)
    return [Row(seed, name, "mean", terms.value, low, high, *shared, note)]


def _of_mass(law: ReturnLaw) -> str:
    if law.beyond > 0.005:
        return f"total probability is {law.beyond:.2g} above 1 (cut off)"
    if law.missing > 0.005:
        return f"total probability is {law.missing:.2g} below 1 (put at the upper bound)"
    return ""


def _support(name: str, logs: Logs, weights: Weights | None) -> tuple[float, float]:
    if weights is None or name == "fqe":
        return float("nan"), float("nan")
    of_episodes = name in estimators.OF_EPISODES
    return effective(weights.last if of_episodes else weights.values), weights.clipped


def _impossible(name: str, value: float, rewards: np.ndarray, steps: float, g: float) -> str:
    """Warns of a value that no policy can earn, by a critic or by a sum of few large weights.

    `rewards` are those of the whole data: a policy may earn early what was recorded late.
    """
    total = steps if g == 1 else (1 - g**steps) / (1 - g)
    low, high = min(0.0, float(rewards.min())), max(0.0, float(rewards.max()))
    low, high = (x and x * total for x in (low, high))  # nothing for ever is nothing
    if intervals.within(value, low, high):
        return ""
    critic = "the critic is not fitted yet, or diverged"
    reason = critic if name == "fqe" else "there are too few effective episodes"
    return f"{IMPOSSIBLE}: {reason}"


def _return(logs: Logs, options: Options) -> str:
    steps = logs.rewards.shape[1]
    of = f"discount {options.discount:g}, up to {steps:,} steps, of {logs.episodes:,} episodes"
    left = f" (without {logs.cut:,} episodes that have no end)" if logs.cut else ""
    endless = "" if options.finite else " (for fqe, without a limit of steps)"
    return of + left + endless


def _interval(options: Options) -> str:
    reported = f"{100 * options.level:g}% {options.interval}"
    if options.interval not in intervals.BY_RANGE:
        return reported
    if options.bounds is None:
        return f"{reported}, for the observed range of returns"
    low, high = options.bounds
    return f"{reported}, for returns from {low:.12g} to {high:.12g}"


def _behaviour(dataset: Dataset, options: Options, device) -> Behaviour:
    if options.behaviour == "fitted":
        return fitted(dataset, seed=options.seed, device=device)
    return recorded(dataset)


def _weights(
    policy: Policy,
    dataset: Dataset,
    logs: Logs,
    behaved: Behaviour,
    options: Options,
    facts: dict[str, str],
    *,
    relative: bool,
) -> list[Weights]:
    """Computes the importance weights of every policy, `relative` as of `Weights.of`."""
    if policy.discrete:
        probabilities = policy.probabilities(dataset.observations)
        with np.errstate(divide="ignore"):
            ours = np.log(probabilities[:, np.arange(len(dataset)), dataset.actions])
    elif policy.log_prob is not None:
        ours = policy.log_prob(dataset.observations, dataset.actions)
        facts["density"] = "the policy's own"
    else:
        wanted = policy.actions(dataset.observations)
        require(
            wanted.shape[2] == 1,
            "Importance weights of a stochastic policy need its log-densities. Give Policy(log_prob=...)",
        )
        scale = options.bandwidth * dataset.actions.std(0, dtype=np.float64)
        ours = np.stack(
            [log_kernel(dataset.actions, x[:, 0], scale, options.kernel) for x in wanted]
        )
        reported = f"{options.kernel} kernel, bandwidth {options.bandwidth:g}"
        facts["density"] = f"{reported}, normalised to 1 within the actions' bounds"
    ratios = [logs.spread(x - behaved.log_prob) for x in ours]
    return [Weights.of(x, options.clip, relative=relative) for x in ratios]


def _models(
    policy: Policy,
    dataset: Dataset,
    logs: Logs,
    options: Options,
    device,
    show,
    facts: dict[str, str],
    *,
    corrected: bool,
) -> list[Model]:
    """Fits the critics of every policy and evaluates them at the recorded steps.

    `corrected` is whether an estimate has terms of every step; otherwise the first ones are enough.
    """
    horizon = logs.rewards.shape[1] if options.finite else None
    cfg = replace(options.fqe, discount=options.discount, horizon=horizon, seed=options.seed)
    critics = FQE(policy, dataset, cfg, device=device)
    critics.fit(show)
    asked = logs.alive.copy()
    if not corrected:
        asked[:, 1:] = False
    used, steps = logs.rows[asked], np.nonzero(asked)[1]
    observations = dataset.observations[used]
    of_steps = (
        critics.q(observations, dataset.actions[used], steps),
        critics.value(observations, steps),
    )
    facts["fqe"] = _fitting(cfg)
    models = []
    for i in range(len(policy.seeds)):
        q, v = np.zeros(asked.shape), np.zeros(asked.shape)
        q[asked], v[asked] = of_steps[0][i], of_steps[1][i]
        models.append(Model(q, v))
    return models


def _fitting(cfg: Settings) -> str:
    """Tells updates, batch and rate, the other settings where they are not the default, and a warning."""
    reported = f"{cfg.steps:,} updates, batch {cfg.batch_size}, lr {cfg.lr:g}"
    known = {"steps", "batch_size", "lr", "discount", "horizon", "seed"}
    for name, default in asdict(Settings()).items():
        value = getattr(cfg, name)
        if name not in known and value != default:
            reported += f", {name} {value}"
    return reported + _too_few(cfg)


def _too_few(cfg: Settings) -> str:
    """Warns of an endless critic that remembers its start. After three constants 5 % of it are left."""
    constant = 1 / (cfg.polyak * (1 - cfg.discount)) if cfg.horizon is None else 0
    few = f" (too few, as the critic's initial values fade with a time constant of {constant:,.0f} updates)"
    return few if cfg.steps < 3 * constant else ""
