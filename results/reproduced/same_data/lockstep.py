"""Our update and CORL's, from the same weights on the same batches and noise, many in a row in float64.

    python results/reproduced/same_data/lockstep.py CORL/algorithms/offline/td3_bc.py \\
        corerl/halfcheetah-replay-regenerated --updates 2000

Batches and noise are our own streams'; weights begin as CORL's file makes them. What is printed is the
largest difference of any weight, targets included, by the largest weight of its layer: it stays at the
rounding error if losses, their order, delays, optimisers, schedules and targets are the same. Known are
`td3_bc.py`, `iql.py` and `cql.py`, with settings of D4RL's HalfCheetah sets.
"""

import argparse
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import run_corl
import torch
from torch import Tensor, nn

from corerl import seeding
from corerl.algos import cql, iql, td3_bc
from corerl.buffers.replay import Batch, OfflineBuffer
from corerl.data.tasks import resolve
from corerl.nn import conservative
from corerl.nn.learner import Spec

Pairs = list[tuple[nn.Module, list[nn.Module]]]


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
        (ours.actor, [actor.net]),
        (ours.target_actor, [theirs.actor_target.net]),
        (ours.critic, [one.net, two.net]),
        (ours.target_critic, [theirs.critic_1_target.net, theirs.critic_2_target.net]),
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
        (ours.policy.body, [pi.net.net]),
        (ours.value, [v.v.net]),
        (ours.critic, [q.q1.net, q.q2.net]),
        (ours.target, [theirs.q_target.q1.net, theirs.q_target.q2.net]),
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
    noise = seeding.normal([args.seed], "noise", (sum(ours.draws), *shape))
    uniforms = seeding.uniform([args.seed], "uniform", (cfg.samples, *shape))

    def update(batches: list[Batch]) -> None:
        drawn, uniform = noise.next().double(), uniforms.next().double()
        parts = drawn.split(ours.draws, 1)
        ours.update(batches[0], conservative.Noise(*parts), uniform)
        single, several = [x[0, 0] for x in parts[:2]], [x[0].transpose(0, 1) for x in parts[2:]]
        normal = mock.patch(
            "torch.distributions.normal._standard_normal", side_effect=[*single, *several]
        )
        points = mock.patch.object(
            torch.Tensor, "uniform_", lambda x, *_: x.copy_(2 * uniform[0].transpose(0, 1) - 1)
        )
        with normal, points:
            theirs.train(_listed(batches[0]))

    pairs = [
        (ours.policy.body, [actor.base_network]),
        (ours.critic, [one.network, two.network]),
        (ours.target, [theirs.target_critic_1.network, theirs.target_critic_2.network]),
    ]
    return update, 1, pairs


ALGORITHMS = {"td3_bc": of_td3_bc, "iql": of_iql, "cql": of_cql}


def _adam(network: nn.Module, rate: float = 3e-4) -> torch.optim.Optimizer:
    return torch.optim.Adam(network.parameters(), lr=rate)


def _listed(batch: Batch) -> list[Tensor]:
    """Returns CORL's batch of our seed number 0."""
    rewards, over = batch.rewards[0][:, None], batch.terminated[0][:, None]
    return [batch.observations[0], batch.actions[0], rewards, batch.next_observations[0], over]


def layers(pairs: Pairs) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields every weight and bias, ours and theirs, in our layout."""
    for ours, theirs in pairs:
        for i, layer in enumerate(ours.layers):
            linear = [[m for m in net if isinstance(m, nn.Linear)][i] for net in theirs]
            weight, bias = (
                torch.stack([getattr(m, k) for m in linear]) for k in ("weight", "bias")
            )
            yield layer.weight, weight.mT.reshape(layer.weight.shape)
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
    rows = dataset.transitions()
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
        "script", type=Path, help="td3_bc.py, iql.py or cql.py of a checkout of CORL"
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
