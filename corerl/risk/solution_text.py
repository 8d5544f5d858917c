"""An exact solution as text: the optimum, the distribution of returns, the policy."""

from corerl.risk import measures
from corerl.risk.finite_mdp import FiniteMDP, Solution, Visit


def describe(solution: Solution, mdp: FiniteMDP, rows: int = 24) -> str:
    """Writes the optimum, the returns' distribution and the policy where it leads. At most `rows` of each."""
    found = "" if solution.budget is None else f", reached at c = {solution.budget:.10g}"
    head = f"{solution.objective} CVaR at tau {solution.tau:g}: {solution.value:.10g}{found}"
    return f"{head}\n{describe_policy(solution, mdp, rows)}"


def describe_policy(solution: Solution, mdp: FiniteMDP, rows: int = 24) -> str:
    """Writes the distribution of returns and the policy where it leads. At most `rows` of each."""
    law, budget = solution.law, solution.budget
    lines = [
        f"return: mean {law.mean:.10g}, standard deviation {law.variance**0.5:.10g}, static CVaR "
        + ", ".join(f"{law.cvar(tau):.6g} at {tau:g}" for tau in measures.TAUS),
        "",
        "distribution of the return",
        *_columns(
            ("return", "probability"), [*zip(law.values, law.probabilities, strict=True)], rows
        ),
        "",
        "policy, in the states that it reaches",
    ]
    points = [
        (v.t, mdp.states[v.state], v.collected, *_stock(budget, v, mdp), v.probability)
        for v in solution.visits
    ]
    actions = [(mdp.actions[v.action],) for v in solution.visits]
    points = [p + a for p, a in zip(points, actions, strict=True) if p[-1] > 0]
    head = ("t", "state", "collected", *(() if budget is None else ("stock",)))
    return "\n".join([*lines, *_columns((*head, "probability", "action"), points, rows)])


def _stock(budget: float | None, visit: Visit, mdp: FiniteMDP) -> tuple[float, ...]:
    """Returns c_t of Bauerle and Ott: the budget left, in units of the rewards to come."""
    if budget is None:
        return ()
    return ((budget - visit.collected) / mdp.discount**visit.t,)


def _columns(head: tuple[str, ...], rows: list[tuple], limit: int) -> list[str]:
    shown = [[x if isinstance(x, str) else f"{x:.6g}" for x in row] for row in rows[:limit]]
    widths = [max(map(len, column)) for column in zip(head, *shown, strict=True)]
    lines = ["  " + "  ".join(x.rjust(w) for x, w in zip(r, widths, strict=True)) for r in shown]
    first = "  " + "  ".join(x.rjust(w) for x, w in zip(head, widths, strict=True))
    rest = [f"  ... and {len(rows) - limit} more"] if len(rows) > limit else []
    return [first, *lines, *rest]
