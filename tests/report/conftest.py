"""`report(...)`: run `corerl report` as the command line does."""

import argparse
from pathlib import Path

import pytest

from corerl.report import cli


@pytest.fixture
def report(tmp_path, capsys):
    """Call with command-line words; gives (exit status, output folder, stdout, stderr)."""

    def run(*words: object) -> tuple[int, Path, str, str]:
        parser = argparse.ArgumentParser()
        cli.add_arguments(parser)
        out = tmp_path / "out"
        options = ["--replicates", "200", "--out", str(out)]
        status = cli.run(parser.parse_args([*map(str, words), *options]))
        return status, out, *capsys.readouterr()

    return run
