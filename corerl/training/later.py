"""Policies kept by a run with `eval.later=true`, to be played where the simulator is."""

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from corerl.config import require
from corerl.nn import optim
from corerl.runs import files, pending
from corerl.runs.checkpoint import save_checkpoint
from corerl.training.evaluation import rounds

if TYPE_CHECKING:
    from corerl.training.run import Run

Act = Callable[[Tensor], Tensor]


def check(name: str) -> None:
    """Raises CorerlError where the policies of an algorithm could not be built again."""
    module = importlib.import_module(f"corerl.algos.{name}")
    require(
        hasattr(module, "build"),
        f"eval.later=true needs `build` in {name}.py, which makes the agent from (cfg, spec). Add below the "
        "agent's class: build = MyAgent",
    )


def keep(run: "Run", step: int, act: Act, also: dict[str, Act], state: dict[str, Any]) -> None:
    """Writes what `training.load.rebuilt` needs to act as `act` and the policies in `also` do now.

    `state` is the run's parts by name. Optimisers are left out. A policy that draws numbers draws those of
    the evaluation, so that training and later evaluations are those of a run that plays itself.
    """
    parts = _parts_that_act(run, state, also)
    left_out = {
        name: [key for key, value in vars(part).items() if isinstance(value, optim.Adam)]
        for name, part in parts.items()
    }
    saved = {
        "loop": {"step": step, "diverged": run.record.diverged},
        "left_out": left_out,
        "state": {
            name: {k: v for k, v in part.state_dict().items() if k not in left_out[name]}
            for name, part in parts.items()
        },
    }
    if run.agent_spec is not None:
        saved["spec"] = run.agent_spec.saved()
    path = pending.path_of(run.directory, step)
    files.make_directory(path.parent)
    save_checkpoint(path, saved)
    for policy in (act, *also.values()):
        if hasattr(policy, "state_dict") and hasattr(policy, "begin"):
            for episodes in rounds(run.cfg.eval.episodes):
                policy.begin(len(run.seeds), len(episodes))


def _parts_that_act(run: "Run", state: dict[str, Any], also: dict[str, Act]) -> dict[str, Any]:
    """Returns the agent, and the parts of the run that its policies are made with.

    Raises:
        CorerlError: the algorithm's `parts` does not make every policy in `also`.
    """
    module = importlib.import_module(f"corerl.algos.{run.cfg.algo.name}")
    agent = state.get("agent")
    made: dict[str, Any] = {}
    if agent is not None and hasattr(module, "parts"):
        made = module.parts(agent, run.agent_spec)
    lacking = ", ".join(also.keys() - made.get("also", {}).keys())
    require(
        not lacking,
        f"eval.later=true cannot play {lacking} later. `parts` in {run.cfg.algo.name}.py must also "
        "return these policies by name, in an entry 'also'",
    )
    return {name: part for name, part in state.items() if name == "agent" or name in made}
