"""Completion scripts: all words are in them, and bash completes with ours."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from magnetar.broker.cli.admin_commands import GROUPS, commands_of
from magnetar.broker.cli.main import SHELLS, main


@pytest.fixture
def script(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", request.param]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("script", SHELLS, indirect=True)
def test_every_word_is_in_it(script: str) -> None:
    missing = [word for group in GROUPS for word in commands_of(group) if word not in script]
    assert missing == []
    assert "--num-produce" in script


@pytest.mark.parametrize("script", ["zsh"], indirect=True)
def test_zsh_keeps_groups_and_words_apart(script: str) -> None:
    assert "@@" not in script
    for above in ("_shtab_magnetar", "_shtab_magnetar_admin"):
        text = _function(script, above)
        groups = dict(re.findall(r"^ +([\w-]+)\) (.*) ;;$", text, re.MULTILINE))
        assert len(groups) == _function(script, f"{above}_commands").count(":'")
        assert groups.keys() >= GROUPS.keys()
        for group in GROUPS:
            called = f"{above}_" + re.sub(r"\W", "_", group)
            assert groups[group] == called
            words = re.findall(r"^ +([\w-]+)\) ", _function(script, called), re.MULTILINE)
            assert sorted(words) == sorted(commands_of(group))
    assert len(groups) == len(GROUPS)


def _function(script: str, name: str) -> str:
    return script.split(f"\n{name}() {{\n")[1].split("\n}\n")[0]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize("script", ["bash"], indirect=True)
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("magnetar pro", {"probe", "produce", "profiles"}),
        ("magnetar admin topics create-m", {"create-missed-partitions"}),
        ("magnetar topics create-m", {"create-missed-partitions"}),
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
