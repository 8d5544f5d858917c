"""Every loss on one to three samples of one seed, against numbers worked out in the comments.

Networks have no hidden layer, so that each is a line: `set_linear` gives its slopes and offset.
"""

import math

import pytest
import torch
from agreement import generators, set_linear, tiny

from corerl.algos import bc, iql, rebrac, td3_bc
from corerl.nn.learner import Spec

HALF = math.atanh(0.5)  # tanh(HALF) = 0.5


def test_bc():
    agent = bc.BC(bc.Config(hidden_layers=0), Spec(1, 2, generators(1)))
    set_linear(agent.policy, [0, 0], [HALF, -HALF])
    batch = tiny(s=[[0], [0]], a=[[0.0, 0.5], [0.5, -0.5]])
    # The action is (0.5, -0.5): squares (0.25, 1.0) and (0, 0), mean of four numbers.
    assert agent.loss(batch)[0].tolist() == pytest.approx([1.25 / 4])


def td3_agent(action_dim: int, **settings) -> td3_bc.TD3BC:
    cfg = td3_bc.Config(hidden_layers=0, discount=0.9, **settings)
    return td3_bc.TD3BC(cfg, Spec(1, action_dim, generators(1)))


def test_td3_bc_critic():
    agent = td3_agent(1)
    set_linear(agent.target_actor, [0], [math.atanh(0.8)])
    set_linear(agent.target_critic, [[0, 1], [0, 3]], [0, -1.5])
    set_linear(agent.critic, [[0, 0], [0, 0]], [0, 1])
    batch = tiny(s=[[0]] * 3, a=[[0]] * 3, r=[1, 0, 2], d=[0, 0, 1])
    noise = torch.tensor([[[5.0], [-1.0], [0.0]]])
    # a' = 0.8 + clip(0.2 * 5, +-0.5) = 1.3, clipped to 1; then 0.8 - 0.2 = 0.6; the third is terminal.
    # min(a', 3a' - 1.5) = 1 and 0.3, so y = 1 + 0.9 = 1.9, 0 + 0.27 and 2.
    # Q1 = 0: (3.61 + 0.0729 + 4) / 3; Q2 = 1: (0.81 + 0.5329 + 1) / 3; their sum 10.0258 / 3.
    assert agent.critic_loss(batch, noise)[0].tolist() == pytest.approx([10.0258 / 3])


def test_td3_bc_actor():
    agent = td3_agent(2)
    set_linear(agent.actor, [0, 0], [HALF, HALF])
    set_linear(agent.critic, [[1, 0, 0], [0, 0, 0]], [0, -100])
    batch = tiny(s=[[1], [-3]], a=[[0.5, 0.5], [0.5, -0.5]])
    # Q1 = s, whatever Q2: lambda = 2.5 / mean(1, 3) = 1.25 (|mean| would be 1, and lambda 2.5).
    # -1.25 * mean(1, -3) = 1.25. Imitation: one square of 1 among four numbers = 0.25.
    assert agent.actor_loss(batch)[0].tolist() == pytest.approx([1.5])


def iql_agent(action_dim: int = 1, **settings) -> iql.IQL:
    cfg = iql.Config(hidden_layers=0, discount=0.9, **settings)
    agent = iql.IQL(cfg, Spec(1, action_dim, generators(1), steps=10))
    set_linear(agent.value, [0], [3])
    return agent


def test_iql_value():
    agent = iql_agent(expectile=0.7)
    set_linear(agent.target, [[1, 0], [1, 0]], [1, 0])
    # min(s + 1, s) - 3 at s = 1 and 4 is -2 and 1: 0.3 * 4 and 0.7 * 1, mean 0.95.
    loss, _ = agent.value_loss(tiny(s=[[1], [4]], a=[[0], [0]]))
    assert loss.tolist() == pytest.approx([0.95])


@pytest.mark.parametrize(("critic_loss", "expected"), [("sum", 5.59), ("mean", 2.795)])
def test_iql_critic(critic_loss, expected):
    agent = iql_agent(critic_loss=critic_loss)
    set_linear(agent.critic, [[0, 0], [0, 0]], [1, 2])
    batch = tiny(s=[[0], [0]], a=[[0], [0]], r=[1, 1], d=[0, 1])
    # y = 1 + 0.9 * 3 = 3.7, and 1 at the terminal row.
    # Q1 = 1: (2.7^2 + 0) / 2 = 3.645; Q2 = 2: (1.7^2 + 1) / 2 = 1.945.
    assert agent.critic_loss(batch).tolist() == pytest.approx([expected])


def test_iql_policy():
    agent = iql_agent(beta=2.0)
    set_linear(agent.policy.body, [0], [HALF])
    batch, target_q = tiny(s=[[0], [0]], a=[[0.5], [-0.5]]), torch.tensor([[2.0, 7.0]])
    # A = 2 - 3 and 7 - 3: weights exp(-2) = 0.1353353 and exp(8) = 2981, held at 100.
    # N(0.5, 1): log pi = -ln(2 pi)/2 = -0.9189385 at 0.5, and 0.5 * 1^2 less at -0.5: -1.4189385.
    # (0.1353353 * 0.9189385 + 100 * 1.4189385) / 2 = (0.1243648 + 141.89385) / 2
    assert agent.policy_loss(batch, target_q, None).tolist() == pytest.approx([71.009107])


@pytest.mark.parametrize(("log_std", "held"), [(3.0, 2.0), (-9.0, -5.0)])
def test_iql_policy_holds_the_log_std(log_std, held):
    agent = iql_agent()
    set_linear(agent.policy.body, [0], [HALF])
    agent.policy.log_std.data.fill_(log_std)
    # At the mean with A = 0 (weight 1): -log pi = log std + ln(2 pi)/2. Outside, log-std does not learn.
    loss = agent.policy_loss(tiny(s=[[0]], a=[[0.5]]), torch.tensor([[3.0]]), None)
    assert loss.tolist() == pytest.approx([held + 0.9189385])
    loss.sum().backward()
    assert agent.policy.log_std.grad.tolist() == [[[0]]]


def test_iql_deterministic_policy():
    agent = iql_agent(action_dim=2, beta=2.0, policy="deterministic")
    set_linear(agent.policy.body, [0, 0], [HALF, HALF])
    batch = tiny(s=[[0], [0]], a=[[0.5, 0.5], [-0.5, 0.0]])
    # Squares summed over dimensions: 0 and 1 + 0.25; weights as above, so (0 + 100 * 1.25) / 2.
    loss = agent.policy_loss(batch, torch.tensor([[2.0, 7.0]]), None)
    assert loss.tolist() == pytest.approx([62.5])


def rebrac_agent(**settings) -> rebrac.ReBRAC:
    cfg = rebrac.Config(hidden_layers=0, discount=0.9, **settings)
    return rebrac.ReBRAC(cfg, Spec(1, 2, generators(1)))


def test_rebrac_critic():
    agent = rebrac_agent(critic_bc_coef=0.5)
    set_linear(agent.target_actor, [0, 0], [math.atanh(0.8), -math.atanh(0.8)])
    set_linear(agent.target_critic, [[0, 0, 0], [0, 1, 0]], [3, 1.2])
    set_linear(agent.critic, [[0, 0, 0], [0, 0, 0]], [0, 1])
    batch = tiny(
        s=[[0], [0]], a=[[0, 0], [0, 0]], r=[1, 1], d=[0, 1], a_next=[[0.8, 0.2], [0.0, 0.0]]
    )
    # Without noise a' = (0.8, -0.8), from the data's (0.8, 0.2) by 0 + 1; min(3, 1.2 + 0.8) = 2.
    # y = 1 + 0.9 * (2 - 0.5 * 1) = 2.35; at the terminal row 1, without a penalty.
    # Q1 = 0: (5.5225 + 1) / 2; Q2 = 1: (1.8225 + 0) / 2; their sum 4.1725.
    loss, _ = agent.critic_loss(batch, torch.zeros(1, 2, 2))
    assert loss.tolist() == pytest.approx([4.1725])


@pytest.mark.parametrize(("normalize_q", "expected"), [(True, 1.25), (False, 2.25)])
def test_rebrac_actor(normalize_q, expected):
    agent = rebrac_agent(actor_bc_coef=0.4, normalize_q=normalize_q)
    set_linear(agent.actor, [0, 0], [HALF, HALF])
    set_linear(agent.critic, [[1, 0, 0], [-1, 0, 0]], [0, 0])
    batch = tiny(s=[[1], [-3]], a=[[0.5, 0.5], [-0.5, 0.0]])
    # min(s, -s) = -1 and -3: mean -2, lambda = 1/2, so +1 (or +2 as it is).
    # Imitation 0.4 * mean(0, 1 + 0.25) = 0.25.
    assert agent.actor_loss(batch)[0].tolist() == pytest.approx([expected])
