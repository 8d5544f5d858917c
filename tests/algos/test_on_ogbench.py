"""IQL and ReBRAC on OGBench as FQL's authors ran them: equations and first weights."""

import reference_fql
import torch
from agreement import (
    SEEDS,
    WIDTH,
    A,
    B,
    O,
    actor_critic,
    assert_networks,
    generators,
    make_batches,
    make_noises,
    net,
    one_seed,
    scramble,
    twins,
)

from corerl.algos.iql_ogbench import IQLOnOGBench
from corerl.algos.rebrac import ReBRAC
from corerl.config import Config
from corerl.launch.composition import cells
from corerl.nn.learner import Spec

CUBE = "ogbench/cube-single-play-singletask-v0"


def composed(name: str, *more: str, task: str = CUBE) -> Config:
    (cell,) = cells([f"algo={name}_ogbench", f"task={task}", *more])
    return cell


def test_iql_equals_the_equations(float64):
    cfg = composed("iql", f"algo.hidden_width={WIDTH}").algo
    agent = IQLOnOGBench(cfg, Spec(O, A, generators()))
    scramble(agent.value, agent.policy, agent.critic, agent.target)

    def mine(s: int) -> tuple:
        networks = net(agent.value, s), net(agent.policy, s)
        return *networks, twins(agent.critic, s), twins(agent.target, s)

    theirs = [reference_fql.IQL(cfg, *mine(s)) for s in range(SEEDS)]
    for batch in make_batches(6):
        agent.update(batch)
        for s, their in enumerate(theirs):
            their.update(one_seed(batch, s))
    for s, their in enumerate(theirs):
        assert_networks(mine(s), their.networks(), 1e-7)  # Adam's epsilon beside half a gradient
    states = 50 * torch.randn(SEEDS, B, O)
    means = agent.policy(states)
    assert (means.abs() > 1).any()
    torch.testing.assert_close(agent.act(states), means.clamp(-1, 1))


def test_rebrac_equals_the_equations(float64):
    cfg = composed("rebrac", f"algo.hidden_width={WIDTH}", "algo.critic_bc_coef=0.3").algo
    agent = ReBRAC(cfg, Spec(O, A, generators()))
    scramble(agent.actor, agent.critic, agent.target_actor, agent.target_critic)
    theirs = [reference_fql.ReBRAC(cfg, *actor_critic(agent, s)) for s in range(SEEDS)]
    batches, noises = make_batches(6), make_noises(6)
    for i in range(0, 6, 2):
        agent.update(batches[i : i + 2], noises[i : i + 2])
    for s, their in enumerate(theirs):
        for i, (batch, noise) in enumerate(zip(batches, noises, strict=True)):
            their.update(one_seed(batch, s), noise[s], full=i % 2 == 0)
        assert_networks(actor_critic(agent, s), their.networks(), 1e-7)


def test_first_weights_are_glorots_and_the_policys_last_a_tenth():
    iql, rebrac = (
        agent(composed(name).algo, Spec(28, 5, generators(1)))
        for name, agent in (("iql", IQLOnOGBench), ("rebrac", ReBRAC))
    )
    for network, last in (
        *((iql.policy, 0.1), (iql.critic, 1), (iql.value, 1)),
        *((rebrac.actor, 0.1), (rebrac.critic, 1)),
    ):
        gains = [1] * (len(network.layers) - 1) + [last]
        for layer, gain in zip(network.layers, gains, strict=True):
            bound = gain * (6 / sum(layer.weight.shape[-2:])) ** 0.5
            assert 0.98 * bound < layer.weight.abs().max() <= bound
            assert not layer.bias.any()
    for normed in (iql.critic, iql.value, rebrac.critic):
        assert [norm.eps for norm in normed.norms] == [1e-6] * 4
    for plain in (iql.policy, rebrac.actor):
        assert all(isinstance(norm, torch.nn.Identity) for norm in plain.norms)
