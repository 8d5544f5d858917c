"""Our update and CORL's, from the same weights on the same batches and noise, many in a row in float64.

    python results/reproduced/same_data/lockstep.py CORL/algorithms/offline/td3_bc.py \\
        corerl/halfcheetah-replay-regenerated --updates 2000

Batches and noise are our own streams'; weights begin as CORL's file makes them. What is printed is the
largest difference of any weight, targets included, by the largest weight of its layer: it stays at the
rounding error if losses, their order, delays, optimisers, schedules and targets are the same. Known are
the files of `ALGORITHMS`, with settings of D4RL's HalfCheetah sets. EDAC and SAC-N are compared with CORL's
log(1 - tanh(u) ** 2 + 1e-6) in place of our log-density, which needs no such constant.
"""

import argparse
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import run_corl
import torch
from torch import Tensor, nn

from corerl import seeding
from corerl.algos import awac, cql, edac, iql, td3_bc
from corerl.buffers.replay import Batch, OfflineBuffer
from corerl.data.tasks import resolve
from corerl.nn import conservative
from corerl.nn.learner import Spec

Layers = Iterator[tuple[Tensor, Tensor]]
Pairs = list[tuple[nn.Module, Callable[[], Layers]]]
"""A network of ours, and the weights and biases of theirs, layer by layer and in our layout."""


def linear(*networks: nn.Module) -> Callable[[], Layers]:
    """Returns the layers of networks that are one of ours, side by side."""

    def layers() -> Layers:
        for same in zip(*(_linear_of(n) for n in networks), strict=True):
            yield torch.stack([x.weight.mT for x in same]), torch.stack([x.bias for x in same])

    return layers


def _linear_of(network: nn.Module) -> list[nn.Module]:
    return [part for part in network.modules() if isinstance(part, nn.Linear)]


def of_td3_bc(corl: SimpleNamespace, sizes: tuple[int, int], spec: Spec, args: argparse.Namespace):
    """Returns `update(batches)` of both, the updates that it makes, and networks, ours with theirs."""
    ours = td3_bc.TD3BC(td3_bc.Config(), spec)
    actor, one, two = corl.Actor(*sizes, 1.0), corl.Critic(*sizes), corl.Critic(*sizes)
    theirs = corl.TD3_BC(1.0, actor, _adam(actor), one, _adam(one), two, _adam(two))
    noise = seeding.normal([args.seed], "noise", (args.batch, sizes[1]))

    def update(batches: list[Batch]) -> None:
        noises = [noise.next().double() for _ in batches]
        ours.update(batches, noises)
        for batch, drawn in zip(batches, noises, strict=True):
            with mock.patch("torch.randn_like", return_value=drawn[0]):  # CORL's one draw
                theirs.train(_listed(batch))

    pairs = [
        (ours.actor, linear(actor)),
        (ours.target_actor, linear(theirs.actor_target)),
        (ours.critic, linear(one, two)),
        (ours.target_critic, linear(theirs.critic_1_target, theirs.critic_2_target)),
    ]
    return update, 2, pairs


def of_iql(corl: SimpleNamespace, sizes: tuple[int, int], spec: Spec, args: argparse.Namespace):
    """Returns what `of_td3_bc` does."""
    cfg = iql.Config(order="joint", critic_loss="mean", init="torch", log_std_min=-20.0)
    ours = iql.IQL(cfg, spec)
    q, v = corl.TwinQ(*sizes), corl.ValueFunction(sizes[0])
    pi = corl.GaussianPolicy(*sizes, 1.0).double()  # its log-std is float32 by name
    theirs = corl.ImplicitQLearning(
        1.0, pi, _adam(pi), q, _adam(q), v, _adam(v), max_steps=spec.steps
    )

    def update(batches: list[Batch]) -> None:
        ours.update(batches[0])
        with mock.patch.object(torch.Tensor, "float", torch.Tensor.double):  # of terminals
            theirs.train(_listed(batches[0]))

    pairs = [
        (ours.policy.body, linear(pi)),
        (ours.value, linear(v)),
        (ours.critic, linear(q.q1, q.q2)),
        (ours.target, linear(theirs.q_target.q1, theirs.q_target.q2)),
    ]
    return update, 1, pairs


def of_cql(corl: SimpleNamespace, sizes: tuple[int, int], spec: Spec, args: argparse.Namespace):
    """Returns what `of_td3_bc` does."""
    cfg = cql.Config()
    ours = cql.CQL(cfg, spec)
    actor = corl.TanhGaussianPolicy(*sizes, 1.0).double()  # as are its scalars here
    one, two = (corl.FullyConnectedQFunction(*sizes, orthogonal_init=True) for _ in range(2))
    optimizers = _adam(one), _adam(two), _adam(actor, cfg.policy_lr)
    theirs = corl.ContinuousCQL(
        *(one, optimizers[0], two, optimizers[1], actor, optimizers[2], -float(sizes[1])),
        policy_lr=cfg.policy_lr,
        qf_lr=cfg.critic_lr,
        bc_steps=0,
        cql_alpha=10.0,
    )
    theirs.log_alpha.double()
    shape = args.batch, sizes[1]
    noise = seeding.normal([args.seed], "noise", (sum(ours.noise_counts), *shape))
    uniforms = seeding.uniform([args.seed], "uniform", (cfg.samples, *shape))

    def update(batches: list[Batch]) -> None:
        drawn, uniform = noise.next().double(), uniforms.next().double()
        parts = drawn.split(ours.noise_counts, 1)
        ours.update(batches[0], conservative.CQLNoise(*parts), uniform)
        single, several = [x[0, 0] for x in parts[:2]], [x[0].transpose(0, 1) for x in parts[2:]]
        points = mock.patch.object(
            torch.Tensor, "uniform_", lambda x, *_: x.copy_(2 * uniform[0].transpose(0, 1) - 1)
        )
        with _draws(*single, *several), points:
            theirs.train(_listed(batches[0]))

    pairs = [
        (ours.policy.body, linear(actor.base_network)),
        (ours.critic, linear(one, two)),
        (ours.target, linear(theirs.target_critic_1, theirs.target_critic_2)),
    ]
    return update, 1, pairs


def of_awac(corl: SimpleNamespace, sizes: tuple[int, int], spec: Spec, args: argparse.Namespace):
    """Returns what `of_td3_bc` does."""
    ours = awac.AWAC(awac.Config(), spec)
    actor = corl.Actor(*sizes, 256).double()  # its log-std is float32 by name
    one, two = corl.Critic(*sizes, 256), corl.Critic(*sizes, 256)
    theirs = corl.AdvantageWeightedActorCritic(
        actor, _adam(actor), one, _adam(one), two, _adam(two)
    )
    noise = seeding.normal([args.seed], "noise", (2, args.batch, sizes[1]))

    def update(batches: list[Batch]) -> None:
        drawn = awac.PolicyNoise(*noise.next().double().unbind(1))
        ours.update(batches[0], drawn)
        with _draws(drawn.next_actions[0], drawn.actions[0]):
            theirs.update(_listed(batches[0]))

    pairs = [
        (ours.policy.body, linear(actor)),
        (ours.critic, linear(one, two)),
        (ours.target, linear(theirs._target_critic_1, theirs._target_critic_2)),
    ]
    return update, 1, pairs


def of_edac(corl: SimpleNamespace, sizes: tuple[int, int], spec: Spec, args: argparse.Namespace):
    """Returns what `of_td3_bc` does, of EDAC or SAC-N."""
    learner = getattr(corl, "EDAC", None)
    ours = edac.EDAC(edac.Config(eta=1.0 if learner else 0.0), spec)
    actor = corl.Actor(*sizes, 256)
    critic = corl.VectorizedCritic(*sizes, 256, ours.cfg.critics)
    theirs = (learner or corl.SACN)(
        *(actor, _adam(actor), critic, _adam(critic)), alpha_learning_rate=3e-4
    )
    theirs.log_alpha.data = theirs.log_alpha.data.double()
    noise = seeding.normal([args.seed], "noise", (3, args.batch, sizes[1]))
    slope = mock.patch(
        "corerl.nn.policies.log_tanh_slope", lambda u: torch.log(1 - u.tanh().square() + 1e-6)
    )

    def update(batches: list[Batch]) -> None:
        drawn = edac.EDACNoise(*noise.next().double().unbind(1))
        with slope:
            ours.update(batches[0], drawn)
        with _draws(*(x[0] for x in drawn)):
            theirs.update(_listed(batches[0]))

    def policy() -> Layers:
        yield from ((x.weight.mT[None], x.bias[None]) for x in _linear_of(actor.trunk))
        heads = actor.mu, actor.log_sigma
        yield (
            torch.cat([x.weight for x in heads]).mT[None],
            torch.cat([x.bias for x in heads])[None],
        )

    def ensemble(network: nn.Module) -> Callable[[], Layers]:
        return lambda: ((x.weight, x.bias.squeeze(1)) for x in network.critic[::2])

    pairs = [
        (ours.policy.body, policy),
        (ours.critic, ensemble(critic)),
        (ours.target, ensemble(theirs.target_critic)),
    ]
    return update, 1, pairs


def of_rebrac(*arguments):
    """Returns what `of_td3_bc` does."""
    import lockstep_jax  # only here: the others need no JAX

    return lockstep_jax.of_rebrac(*arguments)


ALGORITHMS = dict(
    td3_bc=of_td3_bc,
    iql=of_iql,
    cql=of_cql,
    awac=of_awac,
    edac=of_edac,
    sac_n=of_edac,
    rebrac=of_rebrac,
)


def _draws(*noise: Tensor) -> mock._patch:
    """Makes the normal distributions of torch give these draws, one after the other."""
    return mock.patch("torch.distributions.normal._standard_normal", side_effect=noise)


def _adam(network: nn.Module, rate: float = 3e-4) -> torch.optim.Optimizer:
    return torch.optim.Adam(network.parameters(), lr=rate)


def _listed(batch: Batch) -> list[Tensor]:
    """Returns CORL's batch of our seed number 0."""
    rewards, over = batch.rewards[0][:, None], batch.terminated[0][:, None]
    return [batch.observations[0], batch.actions[0], rewards, batch.next_observations[0], over]


def layers(pairs: Pairs) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields every weight and bias, ours and theirs, in our layout."""
    for ours, theirs in pairs:
        for layer, (weight, bias) in zip(ours.layers, theirs(), strict=True):
            yield layer.weight, weight.reshape(layer.weight.shape)
            yield layer.bias, bias.reshape(layer.bias.shape)


@torch.no_grad()
def difference(pairs: Pairs) -> float:
    """Returns the largest difference of a weight by the largest weight of its layer."""
    return max(float((x - y).abs().max() / y.abs().max()) for x, y in layers(pairs))


def compare(args: argparse.Namespace) -> Iterator[tuple[int, float]]:
    """Yields the number of updates made and the largest difference, at growing distances."""
    torch.set_default_dtype(torch.float64)
    dataset = resolve(args.task).load()
    mean, std = dataset.obs_stats()
    rows = dataset.transitions(next_actions=args.script.stem == "rebrac")
    rows = rows._replace(
        observations=(rows.observations - mean) / std,
        next_observations=(rows.next_observations - mean) / std,
    )
    buffer = OfflineBuffer(rows, [args.seed], args.batch)
    sizes = buffer.observation_dim, buffer.action_dim
    spec = Spec(*sizes, seeding.generators([args.seed], "init"), steps=args.updates)
    sys.modules.update(run_corl.stand_ins(None, {}, {}, None))
    corl = SimpleNamespace(**runpy.run_path(str(args.script), run_name="corl"))
    update, stride, pairs = ALGORITHMS[args.script.stem](corl, sizes, spec, args)
    with torch.no_grad():
        for ours, theirs in layers(pairs):
            ours.copy_(theirs)
    shown = 2
    for done in range(stride, args.updates + 1, stride):
        update([Batch(*(x.double() for x in buffer.sample())) for _ in range(stride)])
        if done >= shown or done == args.updates:
            yield done, difference(pairs)
            shown = 2 * done


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "script", type=Path, help=f"of a checkout of CORL: {', '.join(ALGORITHMS)}.py"
    )
    parser.add_argument("task", help="whose data is learned from")
    parser.add_argument("--updates", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    for done, largest in compare(parser.parse_args(argv)):
        print(f"{done:7,} updates: {largest:.1e}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
