"""corerl/cartpole: gymnasium's own steps, mixed quality, the same numbers for the same seed."""

import numpy as np

from corerl.data import embedded
from corerl.data.tasks import resolve
from corerl.envs import cartpole


def test_the_recorded_steps_are_the_environments():
    arrays = cartpole.make(seed=0)
    env = resolve("corerl/cartpole").make_env()
    env.reset(seed=0)
    for i in (0, 25_000, 59_000):
        env.unwrapped.state = arrays["observations"][i].astype(np.float64)
        following, reward, terminated, *_ = env.step(int(arrays["actions"][i]))
        np.testing.assert_allclose(following, arrays["next_observations"][i], atol=1e-5)
        assert (reward, terminated) == (arrays["rewards"][i], arrays["terminated"][i])
    again, other = cartpole.make(seed=0), cartpole.make(seed=1)
    for name, array in arrays.items():
        assert array.tobytes() == again[name].tobytes()
    assert (arrays["actions"] != other["actions"]).mean() > 0.3


def test_a_time_limit_is_no_end_and_a_fall_is(tmp_path, monkeypatch):
    monkeypatch.setenv("CORERL_DATA", str(tmp_path))
    data = embedded.load("cartpole")
    assert data.discrete and len(data) == cartpole.STEPS and set(data.actions.tolist()) == {0, 1}
    over = data.terminated[data.episode_ends - 1]
    angle, place = data.next_observations[data.episode_ends - 1][:, [2, 0]].T
    fallen = (np.abs(angle) > 0.2094) | (np.abs(place) > 2.4)
    np.testing.assert_array_equal(fallen, over)
    cut = data.episode_lengths()[~over]
    assert (cut < 500).sum() <= 3  # where a controller's recording stops
