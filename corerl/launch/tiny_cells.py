"""Cells made so short that a CPU trains them in seconds, to try them before hours on another machine."""

import math
from copy import deepcopy
from dataclasses import replace
from typing import Any

from corerl.config import Config, Wandb, seed_list

UPDATES = 2
BEFORE = 10
"""Steps of the environment before the first update. Some algorithms need several."""


def shrunk(cfg: Config, root: str) -> Config:
    """Returns a cell with its first seed and two updates, or two of every phase, on the CPU below `root`."""
    algo = deepcopy(cfg.algo)
    stride, _ = algo.steps_multiple()
    phase = UPDATES * stride
    first, setting = algo.first_phase()
    if first:
        _set(algo, setting, phase)
    online = algo.phase != "offline"
    if online:
        algo.online.warmup_steps = min(algo.online.warmup_steps, stride)
        algo.online.pretrain_steps = min(algo.online.pretrain_steps, phase)
    wait, setting = algo.first_update()
    if wait:
        wait = stride * math.ceil(BEFORE / stride)
        _set(algo, setting, wait)
    if algo.validate_every:
        algo.validate_every = 1
    steps = phase * (1 + bool(first) + online) + wait
    return replace(
        cfg,
        algo=algo,
        steps=steps,
        seeds=seed_list(cfg.seeds)[:1],
        root=root,
        device="cpu",
        compile="off",
        eval=replace(cfg.eval, every=phase, episodes=min(1, cfg.eval.episodes)),
        log_every=1,
        save_every=1,
        save_minutes=0.0,
        wandb=Wandb(),
        tensorboard=False,
    )


def _set(algo: Any, setting: str, value: int) -> None:
    """Sets `algo.reward.steps` and the like."""
    *groups, name = setting.removeprefix("algo.").split(".")
    for group in groups:
        algo = getattr(algo, group)
    setattr(algo, name, value)
