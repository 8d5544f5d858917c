"""An exact solution as text, by hand."""

import numpy as np

from corerl.envs.mdps import hazard
from corerl.risk.solution_text import describe
from corerl.risk.static_cvar import static


def test_the_text_of_a_discounted_solution_by_hand():
    """At 3/4 the hazard is run five times: 1 each, or -5 and the end with a chance of 0.1."""
    gained = np.array([(1 - 0.95**k) / 0.05 for k in range(6)])
    values = gained - 5 * 0.95 ** np.arange(6) * (np.arange(6) < 5)
    mass = 0.9 ** np.arange(6) * np.where(np.arange(6) < 5, 0.1, 1)
    mean = values @ mass
    deviation = np.sqrt((values - mean) ** 2 @ mass)
    quarter = (0.1 * values[0] + 0.09 * values[1] + 0.06 * values[2]) / 0.25
    c = gained[5]
    printed = [
        " ".join(line.split())
        for line in describe(static(hazard(), 0.75), hazard(), 4).splitlines()
    ]
    assert printed == [
        f"static CVaR at tau 0.75: {c - mass[:5] @ (c - values[:5]) / 0.75:.10g}, reached at c = {c:.10g}",
        f"return: mean {mean:.10g}, standard deviation {deviation:.10g}, static CVaR -5 at 0.05, "
        f"-5 at 0.1, {quarter:.6g} at 0.25",
        "",
        "distribution of the return",
        "return probability",
        *(f"{values[k]:.6g} {mass[k]:.6g}" for k in range(4)),
        "... and 2 more",
        "",
        "policy, in the states that it reaches",
        "t state collected stock probability action",
        *(
            f"{t} alive {gained[t]:.6g} {(c - gained[t]) / 0.95**t:.6g} {0.9**t:.6g} go on"
            for t in range(4)
        ),
        "... and 2 more",
    ]
