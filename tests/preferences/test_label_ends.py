"""`corerl label` ends when it is told to, although drawing opens a window that would take the signal."""

import signal
import subprocess
import sys
import time


def test_sigterm_ends_it(tmp_path):
    words = ["label", "corerl/pendulum", "--pairs", "2", "--no-browser", "--out", "labels.npz"]
    command = [sys.executable, "-P", "-m", "corerl.cli", *words]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline().startswith("http://127.0.0.1")
        time.sleep(1)  # the first picture is drawn
        process.terminate()
        try:
            assert process.wait(20) == -signal.SIGTERM
        finally:
            process.kill()
