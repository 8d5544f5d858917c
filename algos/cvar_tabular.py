"""Exact CVaR of finite MDPs: static (Bauerle and Ott 2011), iterated, ECRM, and what ignores the stock.

X is the discounted return, higher is better, and tau in (0, 1] is the mass of the lower tail.

    static    max over all policies of CVaR_tau(X) = max_c { c - E[(c - X)^+] / tau }
    iterated  V_t(s) = max_a CVaR_tau( r + discount V_{t+1}(s') ), a CVaR at every step
    ecrm      V_t(s) = max_a (1 - weight) E[r] + weight CVaR_tau(r) + discount E[V_{t+1}(s')]
    naive     greedy at each state for the CVaR of the return to come, whatever was collected before
    blind     the best static CVaR of policies that see state and time alone, by enumeration

    python algos/cvar_tabular.py task=risk/A algo.tau=0.5
    corerl train -m algo=cvar_tabular task=risk/B algo.objective=static,iterated,naive algo.tau=0.25

It prints the optimum, the law of the return and the policy, writes them to solution.json, and plays the
policy, so that a report sets it beside agents that learn. A task whose environment has a `FiniteMDP` as `mdp`
and shows the state as `FiniteEnv` does (envs/mdps.py) is solved like these; without a task,
`corerl.risk.static_cvar.static(mdp, tau)` and the functions of `corerl.risk.solvers` take any.

Static is solved over the budget left (risk/static_cvar.py). The dual decomposition with a risk level for each
successor (Chow et al. 2015) is not used: for control it need not give the optimum (Hau et al. 2023).

Differences from the papers:
 1. An endless discounted episode is cut where less than 1e-10 is left to be paid.
 2. `resolution` rounds every discounted reward to a multiple of it, for MDPs with too many different
    returns; static's value is then within steps * resolution / 2 of the exact optimum, and naive's of
    what its policy, chosen by rounded laws, is worth. What static's policy earns where rewards are not
    rounded may lie further below: playing it tells. The values of iterated and ecrm are exact whatever it
    is. Every printed distribution is rounded.
 3. ECRM as stated is Yu and Shen 2022's with the rewards of a finite MDP, which are drawn with the
    transition: each is scored given its state and action. `solvers.ecrm_of_states` has their own index.
 4. Where actions tie, the first is taken; a tie means equal to 1e-12 of the values' scale.
"""

from dataclasses import dataclass

from corerl.config import Settings, one_of, positive, within
from corerl.nn.learner import Spec
from corerl.risk.finite_mdp import EXACT, FiniteMDP, Solution
from corerl.risk.solution_text import describe
from corerl.risk.solvers import blind, ecrm, iterated, naive
from corerl.risk.static_cvar import static
from corerl.training import tabular
from corerl.training.run import Run
from corerl.training.tabular import TabularPlayer, finite_mdp, present


@dataclass
class Config(Settings):
    actions = "discrete"
    name: str = "cvar_tabular"
    label: str = "exact CVaR"

    objective: str = one_of(  # static | iterated | ecrm | naive (per state) | blind (to rewards)
        "static", "iterated", "ecrm", "naive", "blind"
    )
    tau: float = within(0.25, "(0, 1]")  # CVaR level, the share of worst returns (1: the mean)
    weight: float = within(1.0, "[0, 1]")  # weight of CVaR against the mean (objective=ecrm)
    resolution: float = positive(EXACT)  # returns are rounded to multiples of this (not for blind)


SOLVERS = {"static": static, "iterated": iterated, "ecrm": ecrm, "naive": naive, "blind": blind}


def solve(cfg: Config, mdp: FiniteMDP) -> Solution:
    """Returns the solution that the settings ask for."""
    extra = {} if cfg.objective == "blind" else {"resolution": cfg.resolution}
    if cfg.objective == "ecrm":
        extra["weight"] = cfg.weight
    return SOLVERS[cfg.objective](mdp, cfg.tau, **extra)


def build(cfg: Config, spec: Spec) -> TabularPlayer:
    """Returns the player of the exact policy, for every seed the same."""
    mdp = spec.make_env().unwrapped.mdp
    return TabularPlayer(mdp, [solve(cfg, mdp).policy] * spec.seeds)


parts = tabular.parts


def train(cfg: Config, run: Run) -> None:
    mdp = finite_mdp(run.task)
    solution = solve(cfg, mdp)
    present(
        run,
        TabularPlayer(mdp, [solution.policy] * len(run.seeds)),
        describe(solution, mdp),
        solution.numbers(),
    )


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
