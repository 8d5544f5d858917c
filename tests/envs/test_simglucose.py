"""The glucose equations by hand, and NeoRL-2's own simulator with and without them where it is installed."""

import sys
import types

import numpy as np
import pytest
from gymnasium import Env, Wrapper, make

from corerl.envs.simglucose import Simglucose, flow

ONES = "BW kmax kmin f kabs kp2 k1 k2 Vmx Vm0 Km0 Vi Fsnc m1 m2 m4 m30 ka1 ka2 p2u Ib ki kd ksc ke1"
PATIENT = dict.fromkeys(ONES.split(), 1.0) | dict(b=0.5, d=0.5, kp1=10.0, kp3=2.0, ke2=3.0)


def derivatives(x, eaten: float = 0.0, carbohydrates: float = 0.0, insulin: float = 0.0):
    action = types.SimpleNamespace(CHO=carbohydrates, insulin=insulin)
    return flow(0.0, np.array(x, float), action, types.SimpleNamespace(**PATIENT), 0.0, eaten)


def test_a_fasting_patient():
    #     stomach gut  glucose insulin signals liver depots skin
    got = derivatives([0, 0, 2, 4, 1, 3, 2, 5, 1, 2, 1, 3, 6], insulin=0.001)
    assert got == pytest.approx(
        [
            *(0, 0, -2),  # the gut empties at kabs
            (10 - 4 - 2) + 2 - 1 - 1 - 4 + 1,  # produced + from the gut - brain - kidney - k1 + k2
            -(1 + 2) * 1 / 2 + 4 - 1,  # used in tissue, + k1 - k2
            -2 * 3 + 2 + 1 + 3,  # - (m2 + m4) + liver + both depots
            *(-2 + (3 - 1), -(5 - 3), -(1 - 5)),  # the remote signal and the two delays
            -2 * 2 + 3,
            *(6 - 2 * 1, 1 - 3),  # 0.001 U/min are 6 pmol/min
            -6 + 4,
        ]
    )


def test_a_meal_and_empty_compartments():
    got = derivatives(
        [500, 500, 0, -1, -0.5, -1, 0, 0, 9, -1, -1, -1, -1], eaten=1, carbohydrates=2
    )
    # qsto = 1000 = the meal: tanh(5 / 1000 * 500) twice, so that kgut = kmin = kmax = 1.
    assert got[:3] == pytest.approx([-500 + 2000, 0, 500])
    assert [got[i] for i in (3, 4, 5, 9, 10, 11, 12)] == [0] * 7  # below zero nothing moves


class Global(Env):
    """Draws as the simulator does, when it is reset."""

    def reset(self, *, seed=None, options=None):
        patient = types.SimpleNamespace(_params={}, _odesolver=types.SimpleNamespace())
        devices = {name: types.SimpleNamespace(_params={}) for name in ("sensor", "pump")}
        self.env = types.SimpleNamespace(env=types.SimpleNamespace(patient=patient, **devices))
        return np.random.random(), {}  # noqa: NPY002


def test_an_environment_draws_for_itself_what_numpys_global_generator_would():
    one, other = Simglucose(Global()), Simglucose(Global())
    expected, (free, *_) = drawn(5), drawn(1)
    np.random.seed(1)  # noqa: NPY002
    met = [one.reset(seed=5)[0]]
    other.reset(seed=6), other.reset()
    met += [one.reset()[0] for _ in range(2)]
    assert met == expected and np.random.random() == free  # noqa: NPY002


def test_environments_that_nobody_seeds_differ():
    one, other = Simglucose(Global()), Simglucose(Global())
    assert one.reset()[0] != other.reset()[0]


def drawn(seed: int) -> list[float]:
    np.random.seed(seed)  # noqa: NPY002
    return [np.random.random() for _ in range(3)]  # noqa: NPY002


@pytest.fixture
def simulator(monkeypatch):
    pytest.importorskip("neorl2")
    pytest.importorskip("scipy")
    if "pkg_resources" not in sys.modules:
        monkeypatch.setitem(sys.modules, "pkg_resources", types.ModuleType("pkg_resources"))


class Plain(Wrapper):
    """The simulator as it comes, with its global generator seeded."""

    def reset(self, *, seed=None, options=None):
        np.random.seed(seed)  # noqa: NPY002
        return self.env.reset(seed=seed, options=options)

    def step(self, action):
        return self.env.step(float(action[0]))


def day(env: Env, seed: int, steps: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rows = [[*env.reset(seed=seed)[0], 0, 0]]
    for _ in range(steps):
        observation, reward, terminated, _, _ = env.step(rng.uniform(-1, -0.9, 1))
        rows.append([*observation, reward, terminated])
        if terminated:
            break
    return np.array(rows)


@pytest.mark.filterwarnings("ignore")
def test_the_simulators_numbers_are_its_own_and_repeat(simulator):
    ours = Simglucose(make("Simglucose", disable_env_checker=True))
    theirs = Plain(make("Simglucose", disable_env_checker=True))
    for seed in (0,):
        np.testing.assert_allclose(day(ours, seed, 40), day(theirs, seed, 40), rtol=0, atol=1e-9)
    assert (day(ours, 3, 10) == day(ours, 3, 10)).all()
