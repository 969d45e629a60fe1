"""Commands whose output goes nowhere: full disks, closed pipes, no standard output at all."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("output", "code", "said"),
    [
        (">/dev/full", 1, "magnetar: [Errno 28] No space left on device\n"),
        ("| true", 0, ""),
        (">&-", 0, ""),
    ],
)
@pytest.mark.parametrize("command", ["version", "completion zsh"])  # a little, more than a buffer
def test_output_that_can_t_be_written(command: str, output: str, code: int, said: str) -> None:
    done = subprocess.run(
        ["bash", "-c", f'"$0" -m magnetar.broker.cli.main {command} {output}', sys.executable],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (code, said)


def test_values_without_a_standard_output() -> None:
    program = (
        "import sys\n"
        "from magnetar.broker.cli import main, output, version\n"
        "version.run_version = lambda options: output.print_value({'a': [1]}, as_json=False) or 0\n"
        "sys.argv = ['magnetar', 'version']\n"
        "sys.exit(main.main())"
    )
    done = subprocess.run(
        ["bash", "-c", '"$0" -c "$1" >&-', sys.executable, program],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
