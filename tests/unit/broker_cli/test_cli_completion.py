"""Completion scripts: all words are in them, and bash completes with ours."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from broker.cli.main import SHELLS, main
from broker.cli.words import GROUPS, words_of


@pytest.fixture
def script(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", request.param]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("script", SHELLS, indirect=True)
def test_every_word_is_in_it(script: str) -> None:
    missing = [word for group in GROUPS for word in words_of(group) if word not in script]
    assert missing == []
    assert "--num-produce" in script


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize("script", ["bash"], indirect=True)
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("magnetar pro", {"produce", "profiles"}),
        ("magnetar admin topics create-m", {"create-missed-partitions"}),
        ("magnetar admin tenants delete --fo", {"--force"}),
        ("magnetar completion z", {"zsh"}),
    ],
)
def test_bash_completes(script: str, line: str, expected: set[str], tmp_path: Path) -> None:
    file = tmp_path / "completion.bash"
    file.write_text(script)
    words = line.split()
    asked = (
        f"source {file}\nCOMP_WORDS=({' '.join(words)})\nCOMP_CWORD={len(words) - 1}\n"
        f"COMP_LINE='{line}'\nCOMP_POINT={len(line)}\n"
        "function=$(complete -p magnetar | sed 's/.*-F \\([^ ]*\\) .*/\\1/')\n"
        f"$function magnetar {words[-1]} {words[-2]}\n"
        'echo "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", asked], capture_output=True, text=True, check=True, timeout=30
    )
    assert set(done.stdout.split()) == expected
