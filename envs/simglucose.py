"""NeoRL-2's glucose simulator, repeatable and some twenty times as fast, with the same numbers.

A day of a patient with type 1 diabetes (the UVA/Padova model of 2008, as in Xie's simglucose): every three
minutes an action sets the insulin pump. NeoRL-2's version has no noise and fixed meals, so that an episode
is one of 15 patients at one of 24 starting hours, and what the policy makes of it.
"""

import math
import types
import warnings
from typing import Any

import gymnasium
import numpy as np

from corerl.envs.numpy_draws import NumpyDraws


class Simglucose(gymnasium.Wrapper):
    """The `Simglucose` of the neorl2 package, after mending three things around its equations.

    It draws patient and hour from numpy's global generator, of which it has a state to itself here, and
    ignores `reset(seed=)`; its equations are numpy's arithmetic on single numbers, their parameters a slow
    look-up each; and it fails on the action of shape (1,) that its own action space gives.
    """

    def __init__(self, env: gymnasium.Env):
        super().__init__(env)
        self._draws = NumpyDraws()
        warnings.filterwarnings("ignore", category=FutureWarning, module="neorl2")

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        if seed is not None:
            self._draws.seed(seed)
        with self._draws:
            result = self.env.reset(seed=seed, options=options)
        simulator = self.env.unwrapped.env.env
        patient = simulator.patient
        patient._params = types.SimpleNamespace(**_numbers(patient._params))
        patient._odesolver.f = flow
        for device in (simulator.sensor, simulator.pump):
            device._params = _numbers(device._params)
        return result

    def step(self, action):
        return self.env.step(float(action[0]))


def _numbers(series) -> dict[str, Any]:
    """A pandas Series as a dict of Python's own numbers."""
    values = {name: value for name, value in series.items() if name.isidentifier()}
    return {n: v if isinstance(v, str) else float(v) for n, v in values.items()}


def flow(t: float, x: np.ndarray, action, p, meal_before: float, eaten: float) -> list[float]:
    """Time derivatives, per minute, of the 13 compartments of Dalla Man et al. 2007 (IEEE TBME 54:1740).

    Args:
        t: minutes; the equations do not depend on it.
        x: solid and liquid in the stomach, gut (mg); glucose in plasma and tissue (mg/kg); insulin in
            plasma (pmol/kg), its remote and two delayed signals (pmol/l), in the liver, and in two
            depots under the skin (pmol/kg); glucose under the skin (mg/kg).
        action: `CHO` eaten (g/min), `insulin` given (U/min).
        p: the patient's parameters, with the paper's names.
        meal_before, eaten: in the stomach when the meal began (mg), and eaten since (g).
    """
    solid, liquid, gut, plasma, tissue, insulin, remote, delayed, production, liver, *rest = map(
        float, x
    )
    depot1, depot2, skin = rest
    ingested = action.CHO * 1000
    given = action.insulin * 6000 / p.BW
    meal = float(meal_before) + eaten * 1000
    emptying = p.kmax
    if meal > 0:
        rising = 5 / 2 / (1 - p.b) / meal
        falling = 5 / 2 / p.d / meal
        stomach = solid + liquid
        bend = math.tanh(rising * (stomach - p.b * meal)) - math.tanh(
            falling * (stomach - p.d * meal)
        )
        emptying = p.kmin + (p.kmax - p.kmin) / 2 * (bend + 2)
    appearing = p.f * p.kabs * gut / p.BW
    produced = max(p.kp1 - p.kp2 * plasma - p.kp3 * production, 0)
    excreted = p.ke1 * (plasma - p.ke2) if plasma > p.ke2 else 0
    used = (p.Vm0 + p.Vmx * remote) * tissue / (p.Km0 + tissue)
    concentration = insulin / p.Vi
    return [
        -p.kmax * solid + ingested,
        p.kmax * solid - liquid * emptying,
        emptying * liquid - p.kabs * gut,
        (plasma >= 0) * (produced + appearing - p.Fsnc - excreted - p.k1 * plasma + p.k2 * tissue),
        (tissue >= 0) * (-used + p.k1 * plasma - p.k2 * tissue),
        (insulin >= 0)
        * (-(p.m2 + p.m4) * insulin + p.m1 * liver + p.ka1 * depot1 + p.ka2 * depot2),
        -p.p2u * remote + p.p2u * (concentration - p.Ib),
        -p.ki * (delayed - concentration),
        -p.ki * (production - delayed),
        (liver >= 0) * (-(p.m1 + p.m30) * liver + p.m2 * insulin),
        (depot1 >= 0) * (given - (p.ka1 + p.kd) * depot1),
        (depot2 >= 0) * (p.kd * depot1 - p.ka2 * depot2),
        (skin >= 0) * (-p.ksc * skin + p.ksc * plasma),
    ]
