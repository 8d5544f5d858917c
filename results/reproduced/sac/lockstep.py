"""Holds SAC's update against Stable-Baselines3's own, unmodified class, from equal weights on equal data.

    pip install --no-deps --target sb3 stable-baselines3
    PYTHONPATH=sb3 python results/reproduced/sac/lockstep.py --updates 200

Prints the largest difference of a weight after so many updates of critics, targets and policy in float64.
Changed in their code are: the 1e-6 inside the logarithm of 1 - tanh^2, which is 0 here; float32 observations;
Adam's epsilon, half for critics that take half the loss; and the temperature, which they learn by log(alpha)
and which is held in both.
"""

import argparse
from collections.abc import Iterator
from types import SimpleNamespace

import gymnasium
import stable_baselines3
import torch
from stable_baselines3.common import policies
from torch import Tensor, nn

from corerl.algos import sac
from corerl.buffers.replay import Batch
from corerl.nn.learner import Spec

TASK, BATCH, ALPHA = "HalfCheetah-v5", 64, 0.2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=200)
    count = parser.parse_args().updates
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    env = gymnasium.make(TASK)
    O, A = env.observation_space.shape[0], env.action_space.shape[0]
    their = stable_baselines3.SAC("MlpPolicy", env, ent_coef=ALPHA, device="cpu")
    their.actor.action_dist.epsilon = 0.0
    their.critic.optimizer.param_groups[0]["eps"] /= 2
    policies.preprocess_obs = lambda observations, *_, **__: observations
    their._logger = SimpleNamespace(record=lambda *_, **__: None)
    cfg = sac.Config(initial_temperature=ALPHA, learn_temperature=False)
    our = sac.SAC(cfg, Spec(O, A, [torch.Generator().manual_seed(0)], mode="off"))
    layers = paired(their, our)
    own = [x.detach() for layer, _ in layers for x in (layer.weight, layer.bias)]
    with torch.no_grad():
        for mine, other in zip(own, converted(layers), strict=True):
            mine.copy_(other)
    begun = [x.clone() for x in own]
    for batch, noise in drawn(count, O, A):
        take_theirs(their, batch, noise)
        our.update([batch], [sac.PolicyNoise(*noise)])
    apart, moved = (
        [(x - y).abs().max().item() for x, y in zip(own, others, strict=True)]
        for others in (converted(layers), begun)
    )
    print(
        f"after {count} updates: {max(apart):.1e} apart; every layer moved by {min(moved):.1e} or more"
    )


def paired(their, our: sac.SAC) -> list[tuple[nn.Module, tuple]]:
    """Returns each layer of ours with those of theirs that it holds: two heads, two critics or one."""
    actor = their.actor
    heads = ((actor.mu, actor.log_std),)
    bodies = [*((layer,) for layer in actor.latent_pi if isinstance(layer, nn.Linear)), *heads]
    pairs = list(zip(our.policy.body.layers, bodies, strict=True))
    for mine, theirs in ((our.critic, their.critic), (our.target, their.critic_target)):
        nets = [[x for x in net if isinstance(x, nn.Linear)] for net in theirs.q_networks]
        pairs += zip(mine.layers, zip(*nets, strict=True), strict=True)
    return pairs


def converted(layers: list[tuple[nn.Module, tuple]]) -> Iterator[Tensor]:
    """Yields their weight and bias of every layer in the shape of ours."""
    for layer, parts in layers:
        critics = layer.weight.dim() == 4
        weights, biases = [x.weight.T for x in parts], [x.bias for x in parts]
        weight = torch.stack(weights) if critics else torch.cat(weights, 1)
        yield weight.detach().view_as(layer.weight)
        yield torch.cat(biases).detach().view_as(layer.bias)


def drawn(count: int, O: int, A: int) -> Iterator[tuple[Batch, Tensor]]:
    """Yields batches, some of whose steps are terminals, with noise `(2, 1, B, A)`: next actions, actions."""
    for _ in range(count):
        over = (torch.rand(1, BATCH) < 0.1).double()
        states, following = torch.randn(2, 1, BATCH, O)
        actions = torch.rand(1, BATCH, A) * 2 - 1
        batch = Batch(states, actions, torch.randn(1, BATCH), following, over, actions[..., :0])
        yield batch, torch.randn(2, 1, BATCH, A)


def take_theirs(their, batch: Batch, noise: Tensor) -> None:
    """Takes their next update on this batch; they draw the policy's actions first, then the next ones."""
    draws = iter((noise[1, 0], noise[0, 0]))
    torch.distributions.Normal.rsample = lambda self, _=(): self.loc + self.scale * next(draws)
    column = [x[0, :, None] for x in (batch.terminated, batch.rewards)]
    data = SimpleNamespace(
        observations=batch.observations[0],
        actions=batch.actions[0],
        next_observations=batch.next_observations[0],
        dones=column[0],
        rewards=column[1],
        discounts=None,
    )
    their.replay_buffer = SimpleNamespace(sample=lambda *_, **__: data)
    their.train(1, BATCH)


if __name__ == "__main__":
    main()
