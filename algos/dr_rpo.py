"""DR-RPO: distributionally robust regularised policy optimisation (Gu, He, Liu and Xu 2025,
arXiv:2510.14246).

Online, in a linear MDP P(s'|s,a) = <phi(s,a), mu(s')> whose phi is known. Nature pays to leave the nominal
dynamics, and the agent pays to leave a reference policy. Both optima are then in closed form:

    Q_h(s,a) = [ r(s,a) + <phi(s,a), nu_h> + bonus_h(s,a) ] clipped to [0, H - h]
    nu_h,i   = min_q q.V_{h+1} + scale D(q, mu_i),   for KL -scale log m_i[exp(-V / scale)]
    V_h(s)   = max_pi pi.Q_h - eta KL(pi, ref) = eta log sum_a ref(a|s) exp(Q_h(s,a) / eta)
    pi_h     proportional to ref exp(Q_h / eta)

m_i[f] is the i-th coordinate of a ridge regression of f(s') on phi(s,a) over the data of step h, as in R2PVI
(algos/r2pvi.py). R2PVI subtracts the uncertainty of the regression and learns from data it is given. DR-RPO
adds it, plays pi, and learns from what it met:

    bonus    beta sum_i phi_i sqrt((Lambda_h^-1)_ii)      `bonus=joint`: beta ||phi||_{Lambda_h^-1}

    python algos/dr_rpo.py task=risk/low-rank algo.kind=kl algo.eta=0.1
    corerl train -m algo=dr_rpo task=risk/low-rank algo.kind=kl,tv,chi2 seeds=5

A step is an episode. `suboptimality` is the exact optimum less the exact value of the policy that the episode
used. Both are robust, and pay for leaving the reference. `regret` is its sum. `robust` is the policy's robust
value without that payment.

With a large scale this is soft value iteration. With a small eta it is the robust optimum that R2PVI
approaches (tests/algos/test_dr_rpo.py).

Our reading. Only the abstract could be read, and there is no public code.
 1. The form of the bonus, its weight beta, which is the same at every step and episode, and the ridge.
 2. The policy is computed from the current Q in every episode. It is not moved from the last one.
 3. The reference is uniform, or there is none: `reference=none` plays greedily (eta 0).
 4. Transitions of the last step are not modelled, since nothing is paid after it.
"""

from dataclasses import dataclass

import numpy as np

from corerl import seeding
from corerl.algos.r2pvi import regression, uncertainty
from corerl.config import Settings, at_least, one_of, positive
from corerl.nn.learner import Sizes, Spec
from corerl.risk.finite_mdp import FiniteMDP
from corerl.risk.robust import LinearModel, best_policy, improve, policy_value, worst_case
from corerl.training import tabular
from corerl.training.run import Run
from corerl.training.tabular import Learners, TabularLearner, linear_model, model_of


@dataclass
class Config(Settings):
    actions = "discrete"
    name: str = "dr_rpo"
    label: str = "DR-RPO"

    objective: str = one_of("robust")  # robust return (the only choice, shown in reports)
    kind: str = one_of("kl", "tv", "chi2")  # divergence from the nominal dynamics, kl | tv | chi2
    scale: float = positive(0.5)  # penalty per unit of divergence for the worst dynamics
    reference: str = one_of("uniform", "none")  # reference policy of the KL penalty, uniform | none
    eta: float = positive(0.1)  # weight of the KL to the reference policy
    beta: float = at_least(0, 0.1)  # weight of the exploration bonus
    bonus: str = one_of("factors", "joint")  # factors (sum of features) | joint (norm of features)
    ridge: float = positive(1.0)  # ridge lambda of the regression on features

    def price(self) -> float:
        """Returns eta, 0 without a reference."""
        return self.eta if self.reference == "uniform" else 0.0


class DRRPO(TabularLearner):
    """One learner. Attributes: `counts` (H, S, A, S) of the data, and `policy` (H, S, A) played last."""

    arrays = ("counts", "policy")

    def __init__(self, cfg: Config, mdp: FiniteMDP, model: LinearModel, rng: np.random.Generator):
        self.cfg, self.mdp, self.model, self.rng = cfg, mdp, model, rng
        states, actions = mdp.sizes
        self.counts = np.zeros((model.steps, states, actions, states))
        self.policy = np.full((model.steps, states, actions), 1 / actions)
        self.episodes = 0

    def episode(self) -> dict[str, float]:
        """Plans, plays the policy once and keeps what it met."""
        self.episodes += 1
        values = self.plan()
        state = self.mdp.first(self.rng)
        for h in range(self.model.steps):
            action = self.act(h, state, self.rng)
            successor = self.mdp.step(state, action, self.rng)[1]
            self.counts[h, state, action, successor] += 1
            state = successor
        robust = policy_value(self.model, self.cfg.kind, self.cfg.scale, self.policy)[0]
        return {"planned": self.model.start @ values[0], "robust": self.model.start @ robust}

    def plan(self) -> np.ndarray:
        """Sets `policy` by optimistic backward induction, and returns the values `(H + 1, S)`."""
        steps, phi, cfg = self.model.steps, self.model.features, self.cfg
        values = np.zeros((steps + 1, len(self.model.start)))
        for h in reversed(range(steps)):
            q = self.model.rewards
            if h < steps - 1:
                inverse, measures = regression(self.counts[h], phi, cfg.ridge)
                nu = worst_case(cfg.kind, values[h + 1], measures, cfg.scale, steps)
                bonus = cfg.beta * uncertainty(phi, inverse, cfg.bonus)
                q = np.clip(q + self.model.discount * phi @ nu + bonus, 0, steps - h)
            values[h], self.policy[h] = improve(q, cfg.price())
        return values

    def act(self, t: int, state: int, rng: np.random.Generator) -> int:
        """Draws an action of the policy."""
        return int(rng.choice(self.mdp.sizes[1], p=self.policy[t, state]))


def build(cfg: Config, spec: Spec) -> Learners:
    """Returns a learner for each seed, beside the robust optimum."""
    mdp, model = model_of(spec.make_env().unwrapped)
    rngs = [np.random.default_rng(seeding.derive(seed, "dr_rpo")) for seed in spec.identities]
    learners = [DRRPO(cfg, mdp, model, rng) for rng in rngs]
    problem = (model, cfg.kind, cfg.scale)
    value = lambda l: model.start @ policy_value(*problem, l.policy, cfg.price())[0]  # noqa: E731
    return Learners(learners, model.start @ best_policy(*problem, cfg.price())[0][0], value)


parts = tabular.learners_parts


def train(cfg: Config, run: Run) -> None:
    linear_model(run.task)  # raises where robust learners cannot learn
    spec = run.spec(Sizes.of(run.task.make_env()))
    agent = build(cfg, spec)
    player = parts(agent, spec)["policy"]
    for step in run.steps(agent=agent):
        run.log(step, agent.update())
        run.evaluate(step, player)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
