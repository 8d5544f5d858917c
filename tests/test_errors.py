"""What an error says in one line, whatever it says."""

import pytest
from small import config, train
from wording import refused

from corerl.algos import bc
from corerl.errors import first_line
from corerl.policies.load import load


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("one\ntwo"), "one"),
        (ValueError("\n one\ntwo"), "one"),
        (ValueError(), "ValueError"),
        (ValueError(" \n"), "ValueError"),
    ],
)
def test_an_error_says_one_line_even_without_a_message(error, line):
    assert first_line(error) == line


def test_a_checkpoint_that_is_refused_without_a_message_is_told_in_a_sentence(
    tmp_path, monkeypatch
):
    def refuse(self, state):
        raise ValueError

    cell = train(config(tmp_path, "bc"))
    monkeypatch.setattr(bc.BC, "load_state_dict", refuse)
    with refused("ValueError"):
        load(cell)
