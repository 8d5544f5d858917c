"""BC against the numpy transcription."""

import reference
from agreement import (
    SEEDS,
    WIDTH,
    A,
    O,
    assert_losses,
    assert_networks,
    generators,
    make_batches,
    net,
    one_seed,
    scramble,
)

from corerl.algos.bc import BC, Config
from corerl.nn.learner import Spec


def test_five_updates_equal_the_equations(tolerance):
    cfg = Config(hidden_width=WIDTH, lr=1e-3)
    agent = BC(cfg, Spec(O, A, generators()))
    scramble(agent.policy)
    references = [reference.BC(net(agent.policy, s), cfg) for s in range(SEEDS)]
    for batch in make_batches(5):
        metrics = agent.update(batch)
        for s, theirs in enumerate(references):
            losses = theirs.update(one_seed(batch, s))
            assert_losses(metrics, s, losses, tolerance)
    for s, theirs in enumerate(references):
        assert_networks(net(agent.policy, s), theirs.policy, tolerance)
