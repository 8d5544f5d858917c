"""Every trajectory of a small random MDP, with its probability: expectations without sampling."""

import itertools

import numpy as np

from corerl.ope.estimators import Model
from corerl.ope.logs import Logs, Weights
from corerl.risk.finite_mdp import FiniteMDP


class Enumerated:
    """2 states, 2 actions, T steps; rewards of state and action, discount g.

    Attributes: probabilities `(E,)` of the trajectories under the behaviour policy; logs; log_ratios
    `(E, T)`; value, the evaluated policy's by backward induction.
    """

    def __init__(self, steps=2, discount=0.9, seed=0, deterministic=False):
        rng = np.random.default_rng(seed)
        self.transitions = rng.dirichlet(np.ones(2), (2, 2))
        self.rewards = rng.uniform(size=(2, 2))
        self.behaviour = rng.dirichlet(np.ones(2), 2)
        self.policy = rng.dirichlet(np.ones(2), 2)
        if deterministic:
            self.policy = np.eye(2)[rng.integers(2, size=2)]
        self.model = rng.normal(size=(steps, 2, 2))  # an arbitrary Q
        self.start = np.array([0.3, 0.7])
        paths = list(itertools.product((0, 1), repeat=2 * steps))
        self.states, self.actions = (np.array([path[i::2] for path in paths]) for i in (0, 1))
        taken = (self.states, self.actions)
        chance = self.transitions[self.states[:, :-1], self.actions[:, :-1], self.states[:, 1:]]
        chance = chance.prod(1) * self.start[self.states[:, 0]]
        self.probabilities = chance * self.behaviour[taken].prod(1)
        self.under_policy = chance * self.policy[taken].prod(1)
        alive = np.ones(self.states.shape, bool)
        self.logs = Logs(self.rewards[taken], alive, np.zeros_like(self.states), discount)
        with np.errstate(divide="ignore"):
            self.log_ratios = np.log(self.policy[taken] / self.behaviour[taken])
        self.weights = Weights.of(self.log_ratios)
        self.mdp = FiniteMDP.from_matrices(
            self.transitions, self.rewards, start=self.start, horizon=steps, discount=discount
        )
        value = np.zeros(2)
        for _ in range(steps):
            value = (self.policy * (self.rewards + discount * self.transitions @ value)).sum(1)
        self.value = self.start @ value

    def of_model(self) -> Model:
        """The arbitrary Q and its V at every step."""
        steps = np.arange(self.states.shape[1])
        q = self.model[steps, self.states, self.actions]
        v = (self.policy[None] * self.model).sum(-1)[steps, self.states]
        return Model(q, v)
