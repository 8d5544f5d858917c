"""The Decision Transformer against its transcription; windows, padding, masks, returns to go, targets."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import reference_dt
import tiny
import torch
from agreement import SEEDS, assert_networks, generators, net, scramble
from small import run
from torch.nn import functional as F

from corerl.algos.dt import DT, Config, facts
from corerl.buffers.sequences import SequenceBuffer, Windows
from corerl.config import Eval
from corerl.data.dataset import Dataset
from corerl.data.tasks import resolve
from corerl.nn import networks, transformer
from corerl.nn.learner import Spec
from corerl.nn.optim import clip_per_seed
from corerl.training.windows import load_windows

O, A, K, B, MAX_TIME = 3, 2, 4, 5, 6
ENDS = np.array([3, 13, 14, 24])


def settings(**more) -> Config:
    tiny = {
        "context": K,
        "width": 8,
        "heads": 2,
        "layers": 2,
        "max_timestep": MAX_TIME,
        "batch_size": B,
        "warmup_steps": 3,
        "lr": 1e-2,
        "weight_decay": 0.1,
        "return_scale": 10.0,
    }
    return Config(**tiny | more)


def dataset() -> Dataset:
    rng = np.random.default_rng(0)
    n = ENDS[-1]
    truncated = np.zeros(n, bool)
    truncated[ENDS - 1] = True
    observations = rng.normal(2.0, 3.0, (n, O))
    return Dataset.from_steps(
        "test/walk",
        observations,
        rng.uniform(-1, 1, (n, A)),
        rng.normal(1.0, 2.0, n),
        np.roll(observations, -1, 0),
        np.zeros(n, bool),
        truncated,
    )


def loaded(cfg: Config, data: Dataset | None = None, seeds=range(SEEDS)):
    run = SimpleNamespace(
        task=resolve("corerl/pendulum"),
        dataset=lambda: data or dataset(),
        seeds=list(seeds),
        device=torch.device("cpu"),
        cfg=SimpleNamespace(algo=cfg, history=1),
    )
    data, buffer, normalizer = load_windows(cfg, run)
    return buffer, normalizer, facts(cfg, data)["targets"]


VERSIONS = {
    "official": {},
    "one head, one layer": {"heads": 1, "layers": 1},
    "no dropout": {"dropout": 0.0},
    "corl": {"activation": "gelu", "loss_over": "all", "padding": "right", "init": "corl"},
    "unclipped": {"max_grad_norm": 1e9},
}


@pytest.mark.parametrize("version", VERSIONS.values(), ids=VERSIONS)
def test_five_updates_equal_the_equations(version, tolerance):
    cfg = settings(**version)
    agent = DT(cfg, Spec(O, A, generators()))
    scramble(agent.transformer)
    buffer = loaded(cfg)[0]
    keys = transformer.dropout_keys(range(SEEDS), agent.transformer.places)
    activation = F.gelu if cfg.activation == "gelu" else torch.relu
    references = [reference_dt.DT(net(agent.transformer, s), cfg, activation) for s in range(SEEDS)]
    dtype = torch.get_default_dtype()
    for _ in range(5):
        windows, key = buffer.sample(), keys.next()
        windows = Windows(*(x.to(dtype) if x.is_floating_point() else x for x in windows))
        loss = agent.update(windows, key)["loss"]
        for s, theirs in enumerate(references):
            mine = Windows(*(x[s] for x in windows))
            expected = theirs.update(mine, reference_dt.masks(key[s].tolist(), cfg))
            assert loss[s].item() == pytest.approx(expected, rel=tolerance, abs=tolerance)
    for s, theirs in enumerate(references):
        mine, theirs = net(agent.transformer, s), theirs.network()
        if dtype == torch.float32:
            for parameters in (mine, theirs):
                forget_key_biases(parameters, cfg)
        assert_networks(mine, theirs, tolerance)


def forget_key_biases(parameters: dict, cfg: Config) -> None:
    """A softmax is blind to a bias of all keys: its gradient is rounding, which Adam scales up to lr."""
    for i in range(cfg.layers):
        parameters[f"blocks.{i}.key_value.bias"] = parameters[f"blocks.{i}.key_value.bias"][
            :, cfg.width :
        ]


@pytest.mark.parametrize("padding", ["left", "right"])
def test_windows_are_the_authors(padding):
    """Every row of the data as a start; CORL's right padding holds the same steps, moved."""
    data, cfg = dataset(), settings(padding=padding, max_timestep=1000)
    buffer, _, _ = loaded(cfg, data)
    windows = buffer.windows(torch.arange(len(data)).expand(SEEDS, -1))
    for row in range(len(data)):
        episode = int(np.searchsorted(ENDS, row, side="right"))
        start, end = data.episode_starts[episode], ENDS[episode]
        args = (data.observations, data.actions, data.rewards, start, end, row, K, 10.0)
        expected = reference_dt.window(*args)
        left = K - int(expected.valid.sum())
        for name, mine, theirs in zip(Windows._fields, windows, expected, strict=True):
            theirs = np.roll(theirs, -left, axis=0) if padding == "right" else theirs
            np.testing.assert_allclose(mine[0, row], theirs, rtol=1e-5, atol=1e-5, err_msg=name)


def test_starts_are_uniform_over_rows_so_episodes_go_by_their_length():
    buffer = loaded(settings(batch_size=2000), dataset())[0]
    first = torch.stack([buffer.sample().timesteps.amax(-1) for _ in range(3)])
    # Episodes of 3, 10, 1 and 10 steps: only the two long ones have steps of number 3 and more.
    assert (first >= K - 1).float().mean().item() == pytest.approx(20 / 24, abs=0.02)


def test_late_steps_share_the_last_row_of_the_time_table():
    windows = loaded(settings())[0].windows(torch.tensor([[9], [9]]))
    assert windows.timesteps[0, 0].tolist() == [5, 5, 5, 5]
    assert loaded(settings(max_timestep=1000))[0].windows(torch.tensor([[9]])).timesteps[
        0, 0
    ].tolist() == [6, 7, 8, 9]


def test_windows_hold_no_copy_of_the_data():
    buffer = loaded(settings())[0]
    assert buffer.nbytes == (len(dataset()) + 1) * (O + A + 2) * 4 + len(dataset()) * 8


def test_padding_moves_no_prediction():
    """What stands under the mask, and on which side, is the same to every valid step."""
    agent = DT(settings(), Spec(O, A, generators()))
    scramble(agent.transformer)
    start = torch.tensor([[1], [1]])  # two steps are left of the first episode
    left = loaded(settings())[0].windows(start)
    right = loaded(settings(padding="right"))[0].windows(start)
    absurd = left._replace(
        actions=left.actions + 1e3 * (1 - left.valid)[..., None],
        returns_to_go=left.returns_to_go - 1e3 * (1 - left.valid),
    )
    expected = agent.transformer(left)[:, :, 2:]
    torch.testing.assert_close(agent.transformer(absurd)[:, :, 2:], expected)
    torch.testing.assert_close(agent.transformer(right)[:, :, :2], expected, rtol=1e-4, atol=1e-5)
    assert agent.transformer(left).isfinite().all()


def test_no_step_sees_the_future_or_its_own_action():
    agent = DT(settings(), Spec(O, A, generators()))
    scramble(agent.transformer)
    windows = loaded(settings())[0].windows(torch.tensor([[3], [3]]))
    for name in ("observations", "actions", "returns_to_go"):
        changed = getattr(windows, name).clone()
        changed[:, :, 2] += 1
        after = agent.transformer(windows._replace(**{name: changed}))
        before = agent.transformer(windows)
        seen = 3 if name == "actions" else 2  # an action is read by later steps only
        assert torch.equal(after[:, :, :seen], before[:, :, :seen])
        assert not torch.equal(after[:, :, seen], before[:, :, seen])


def test_the_loss_averages_over_valid_steps_only():
    """Predictions of 0 against actions of 1: 1 in every valid step, whatever the padding."""
    agent = DT(settings(dropout=0.0), Spec(O, A, generators(1)))
    with torch.no_grad():
        agent.transformer.action.weight.zero_()
        agent.transformer.action.bias.zero_()
    buffer = loaded(settings(), seeds=[0])[0]
    windows = buffer.windows(torch.tensor([[2, 3]]))  # one step is left, and four
    actions = torch.where(windows.valid[..., None] > 0, 1.0, windows.actions)
    windows = windows._replace(actions=actions)
    assert agent.loss(windows, None)[0].item() == pytest.approx(1.0)
    agent.cfg = settings(loss_over="all")
    assert agent.loss(windows, None)[0].item() == pytest.approx(5 / 8)


def test_gradients_are_clipped_per_seed():
    cfg = settings(dropout=0.0, weight_decay=0.0, warmup_steps=1)
    agent = DT(cfg, Spec(O, A, generators()))
    windows = loaded(cfg)[0].sample()
    huge = windows._replace(actions=torch.cat([windows.actions[:1], 1e6 * windows.actions[1:]]))
    grads = agent._step.gradients(windows, None)[0]
    spoiled = agent._step.gradients(huge, None)[0]
    for g, h in zip(clip_per_seed(grads, 0.25), clip_per_seed(spoiled, 0.25), strict=True):
        assert torch.equal(g[0], h[0])
    norm = sum(g[1].double().square().sum() for g in clip_per_seed(spoiled, 0.25)).sqrt()
    assert norm.item() == pytest.approx(0.25, rel=1e-3)


def test_the_player_lowers_its_target_by_what_it_earned_and_remembers_k_steps():
    """Against the authors' loop: the whole history, cut to the last K, padded on the left."""
    agent = DT(
        settings(),
        Spec(O, A, generators(), normalizer=networks.Normalizer.of([1.0] * O, [2.0] * O)),
    )
    scramble(agent.transformer)
    player = agent.player(50.0)
    rng = np.random.default_rng(0)
    for _ in range(2):  # the second episodes find no trace of the first
        player.begin(SEEDS, 3)
        states, actions, asked = [], [], [torch.full((SEEDS, 3), 5.0)]
        for t in range(K + 3):
            observation = torch.as_tensor(rng.normal(size=(SEEDS, 3, O)), dtype=torch.float32)
            states.append((observation - 1) / 2)
            action = player(observation)
            seen = min(t + 1, K)
            window = history(states, actions, asked, seen, t)
            expected = agent.transformer(window)[:, :, -1]
            torch.testing.assert_close(action, expected)
            actions.append(action)
            reward = torch.as_tensor(rng.normal(size=(SEEDS, 3)), dtype=torch.float32)
            player.reward(reward)
            asked.append(asked[-1] - reward / 10)


def history(states, actions, asked, seen: int, t: int) -> Windows:
    """Only the last `seen` steps, without padding; the action to come is 0."""
    actions = [*actions, torch.zeros(SEEDS, 3, A)]
    times = torch.arange(t - seen + 1, t + 1).clamp(max=MAX_TIME - 1).expand(SEEDS, 3, -1)
    stack = [torch.stack(x[-seen:], 2).detach() for x in (states, actions, asked)]
    return Windows(*stack, times, torch.ones(SEEDS, 3, seen))


def test_targets_are_sorted_and_default_to_the_best_return():
    assert loaded(settings(targets=[1800.0, 3600.0]))[2] == [3600.0, 1800.0]
    assert loaded(settings())[2] == [pytest.approx(dataset().episode_returns().max())]
    late = np.ones(ENDS[-1])
    late[[0, *ENDS[:-1]]] = -5.0  # what is left after a first step is more than any return
    assert loaded(settings(), dataset().with_rewards(late))[2] == [4.0]


def test_states_are_normalised_over_all_steps():
    buffer, normalizer, _ = loaded(settings())
    data = dataset().observations
    np.testing.assert_allclose(normalizer.mean, data.mean(0), rtol=1e-5)
    np.testing.assert_allclose(normalizer.std, data.std(0) + 1e-6, rtol=1e-5)
    first = buffer.windows(torch.tensor([[0]])).observations[0, 0, 1:]
    torch.testing.assert_close(first, normalizer(torch.as_tensor(data[:3])))


def test_initial_weights_are_the_authors_or_corls():
    official, corl = (
        DT(Config(init=i), Spec(17, 6, generators(1))).transformer for i in ("official", "corl")
    )
    for model in (official, corl):
        wide = model.blocks[1].widen
        assert wide.weight.std().item() == pytest.approx(0.02, rel=0.02)
        assert wide.bias.abs().max() == 0
    assert official.embed_time.weight.std().item() == pytest.approx(1, rel=0.02)
    assert corl.embed_time.weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert official.embed_state.weight.abs().max().item() == pytest.approx(17**-0.5, rel=0.02)
    assert corl.embed_state.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert official.blocks[0].query.weight.std().item() == pytest.approx(0.02, rel=0.03)
    assert corl.blocks[0].query.weight.abs().max().item() == pytest.approx(
        math.sqrt(6 / 512), rel=0.01
    )


def test_dropout_hash_is_fair_and_differs_between_keys_and_neighbours():
    kept = transformer.kept(torch.tensor([5, 6], dtype=torch.int32), (300, 300), 0.1)
    np.testing.assert_array_equal(kept[1].flatten(), reference_dt.kept(6, 90_000, 0.1))
    kept = kept.double().flatten(1)
    assert kept.mean(1).tolist() == pytest.approx([0.9] * 2, abs=0.005)
    for x, y in ((kept[0], kept[1]), (kept[0, 1:], kept[0, :-1]), (kept[0, 300:], kept[0, :-300])):
        assert abs(torch.corrcoef(torch.stack([x, y]))[0, 1].item()) < 0.015


def test_evaluation_uses_torchs_attention_and_agrees_with_the_explicit_one():
    rngs = generators()
    block = transformer.Block(8, 2, rngs, init=networks.normal(0.5))
    x = torch.randn(SEEDS, 3, 9, 8, generator=torch.Generator().manual_seed(0))
    allowed = transformer.causal(torch.ones(SEEDS, 3, 9, dtype=torch.bool))
    key = torch.zeros(SEEDS, dtype=torch.int32)
    explicit = block(x, allowed, [key] * 3, rate=0.0)
    torch.testing.assert_close(block(x, allowed), explicit)
    states = block(x, allowed, outputs=slice(1, None, 3))
    torch.testing.assert_close(states, explicit[:, :, 1::3])


def test_windows_are_copies():
    buffer = SequenceBuffer(
        np.zeros((3, 1), np.float32),
        np.zeros((3, 1), np.float32),
        np.zeros(3, np.float32),
        np.array([3]),
        [0],
        1,
        2,
        filler=(np.zeros(1), np.zeros(1)),
    )
    buffer.windows(torch.tensor([[0]])).actions.fill_(7)
    assert buffer.windows(torch.tensor([[0]])).actions.abs().max() == 0


@pytest.mark.usefixtures("short_episodes")
def test_scores_are_of_the_largest_target_and_the_others_are_logged(tmp_path):
    cfg = replace(tiny.settings("dt", targets=[-100.0, -300.0, -50.0]), steps=10)
    folder = run(
        replace(cfg, compile="off", eval=Eval(every=10, episodes=1), root=str(tmp_path)), (0, 4)
    )
    rows = [line.split(",") for line in (folder / "scores.csv").read_text().splitlines()[1:]]
    assert len(rows) == 2
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    others = [line for line in lines if "return target -100" in line]
    assert [(line["seed"], line["step"]) for line in others] == [(0, 10), (4, 10)]
    assert all("return target -300" in line and "return target -50" not in line for line in others)
    # The embedded task has no reference scores, or these would be normalised returns.
    assert all(("score target -100" in line) for line in others)
