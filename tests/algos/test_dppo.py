"""DPPO: its loss by hand and against a transcription, limits of the contrast, no gradient at 0."""

import math

import numpy as np
import pytest
import torch
from agreement import SEEDS, WIDTH, A, O, as_tensor, generators, scramble
from test_cpl_ranked import B, L, batches

from corerl.algos import cpl_ranked, dppo
from corerl.nn.learner import Spec
from corerl.preferences.segments import Segments


def make(**more) -> dppo.DPPO:
    agent = dppo.DPPO(
        dppo.Config(**{"hidden_width": WIDTH, "lr": 1e-3} | more), Spec(O, A, generators())
    )
    scramble(agent.policy)
    return agent


def two_segments(agent: dppo.DPPO, distances, scores) -> Segments:
    """Segments of one step each, whose actions lie so far from the policy's along the first axis."""
    observations = torch.randn(SEEDS, 2, 1, O, dtype=torch.get_default_dtype())
    with torch.no_grad():
        actions = torch.tanh(agent.policy(observations.flatten(1, 2))).view(SEEDS, 2, 1, A).clone()
    actions[..., 0] += 2 * torch.tensor(distances)[:, None]
    valid = torch.ones(SEEDS, 2, 1)
    return Segments(observations, actions, valid, torch.tensor(scores).expand(SEEDS, 2))


@pytest.mark.parametrize("contrast", [1.0, 0.3, 0.0])
@pytest.mark.parametrize("scores", [(1.0, 0.0), (0.0, 1.0)])
def test_two_segments_by_hand(float64, contrast, scores):
    """Distances 0.1 and 0.25 over a temperature of 0.1: 1 and 2.5."""
    agent = make(contrast=contrast)
    loss, metrics = agent.loss(two_segments(agent, (0.1, 0.25), scores), None)
    better, worse = (1.0, 2.5) if scores[0] > scores[1] else (2.5, 1.0)
    top = math.exp(-better)
    expected = -math.log(top / (top + math.exp(-contrast * worse)))
    np.testing.assert_allclose(loss.detach(), expected)
    assert metrics["accuracy"].tolist() == [float(better < worse)] * SEEDS


class Transcription:
    """One seed in numpy loops over pairs, as the equation stands, with torch's gradients and Adam."""

    def __init__(self, agent: dppo.DPPO, seed: int):
        self.cfg = agent.cfg
        self.net = [
            [layer.weight[seed].detach().clone(), layer.bias[seed].detach().clone()]
            for layer in agent.policy.layers
        ]
        flat = [x.requires_grad_(True) for layer in self.net for x in layer]
        self.adam = torch.optim.Adam(flat, agent.cfg.lr)

    def policy(self, x):
        for weight, bias in self.net[:-1]:
            x = torch.relu(x @ weight + bias)
        return torch.tanh(x @ self.net[-1][0] + self.net[-1][1])

    def update(self, batch: Segments) -> float:
        distances = []
        for b in range(B):
            steps = [t for t in range(L) if batch.valid[b, t]]
            away = [
                (self.policy(batch.observations[b, t][None])[0] - batch.actions[b, t]).norm() / 2
                for t in steps
            ]
            distances.append(sum(away) / len(steps) / self.cfg.temperature)
        terms = []
        for i in range(B):
            for j in range(B):
                if batch.scores[i] > batch.scores[j]:
                    top = torch.exp(-distances[i])
                    terms.append(
                        -torch.log(top / (top + torch.exp(-self.cfg.contrast * distances[j])))
                    )
        loss = sum(terms) / len(terms)
        self.adam.zero_grad()
        loss.backward()
        self.adam.step()
        return float(loss.detach())


@pytest.mark.parametrize("contrast", [1.0, 0.5])
def test_four_updates_equal_the_transcription(float64, contrast):
    agent = make(contrast=contrast)
    references = [Transcription(agent, s) for s in range(SEEDS)]
    for batch in batches(4):
        batch = Segments(*(as_tensor(x) for x in batch))
        metrics = agent.update(batch)
        for s, theirs in enumerate(references):
            loss = theirs.update(Segments(*(x[s] for x in batch)))
            assert float(metrics["dppo_loss"][s]) == pytest.approx(loss, rel=1e-9)
    for s, theirs in enumerate(references):
        for layer, (weight, bias) in zip(agent.policy.layers, theirs.net, strict=True):
            torch.testing.assert_close(layer.weight[s], weight.detach(), rtol=1e-8, atol=1e-10)
            torch.testing.assert_close(layer.bias[s], bias.detach(), rtol=1e-8, atol=1e-10)


def test_without_contrast_only_preferred_segments_teach(float64):
    """The worst segment of a batch is nobody's better: at contrast 0 its actions have no gradient."""
    for contrast, taught in ((0.0, False), (1.0, True)):
        agent, batch = make(contrast=contrast), batches(1)[0]
        batch = batch._replace(actions=batch.actions.clone().requires_grad_(True))
        agent.loss(batch, None)[0].sum().backward()
        worst = batch.scores.argmin(1)
        grads = batch.actions.grad[torch.arange(SEEDS), worst]
        assert bool(grads.abs().max() > 0) == taught


def test_a_policy_that_is_right_has_no_gradient_and_no_nan():
    agent = make()
    batch = two_segments(agent, (0.0, 0.0), (1.0, 0.0))
    loss, _ = agent.loss(batch, None)
    loss.sum().backward()
    np.testing.assert_allclose(loss.detach(), math.log(2), rtol=1e-6)
    assert not any(p.grad.abs().max() for p in agent.policy.parameters())


def test_it_is_the_loop_of_ranked_segments_with_another_loss():
    assert issubclass(dppo.Config, cpl_ranked.Ranked) and dppo.build is dppo.DPPO
    assert not hasattr(dppo.Config(), "bias") and dppo.Config().first_phase()[0] > 0
