"""Names that completion asks a broker for."""

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from magnetar.broker.cli.completion_names import VARIABLE, given_in, kind_of, names_for, print_names
from magnetar.broker.cli.main import build_parser, main
from magnetar.broker.cli.profiles import ClusterTarget
from tests.unit.broker.cli.test_cli_names import BASE, CLUSTER, names

KNOWN = {
    **CLUSTER,
    "persistent/acme/eu": [f"{BASE}{name}" for name in ("orders", "bills-partition-0")],
    "persistent/public/default": ["persistent://public/default/pub-sub"],
    "persistent/public/default/partitioned": [],
    "non-persistent/acme/eu": ["non-persistent://acme/eu/ticks"],
    "non-persistent/acme/eu/partitioned": [],
}


@pytest.mark.parametrize(
    ("kind", "text", "found"),
    [
        ("tenant", "", ["acme", "public"]),
        ("tenant", "a", ["acme"]),
        ("namespace", "ac", ["acme/"]),
        ("namespace", "acme/", ["acme/eu", "acme/us"]),
        ("topic", "pub", ["pub-sub", "public/"]),
        ("topic", "acme/", ["acme/eu/", "acme/us/"]),
        ("topic", "acme/eu/", ["acme/eu/bills", "acme/eu/orders"]),
        ("topic", "acme/eu/bills-partition-", ["acme/eu/bills-partition-0"]),
        ("topic", "persistent://p", ["persistent://public/"]),
        ("topic", "persistent://acme/eu/o", ["persistent://acme/eu/orders"]),
        ("topic", "non-persistent://acme/eu/", ["non-persistent://acme/eu/ticks"]),
        ("subscription", "b", ["billing"]),
    ],
)
def test_names_go_on_as_they_were_begun(kind: str, text: str, found: list[str]) -> None:
    assert names_for(kind, text, {"topic": "acme/eu/orders"}, names(KNOWN)) == found


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("topics unsubscribe orders -s", {"topic": "orders", "admin_url": None}),
        ("--profile p admin topics skip --json a/b/c", {"topic": "a/b/c", "profile": "p"}),
        ("admin --admin-url=http://h topics skip t", {"topic": "t", "admin_url": "http://h"}),
        ("consume --url U t -n 5 -s", {"topic": "t", "url": "U", "num_messages": "5"}),
        ("topics delete one two", {"topic": "one"}),
    ],
)
def test_an_unfinished_command_is_understood(line: str, expected: Mapping[str, Any]) -> None:
    words = shlex.split(line)
    given = given_in(build_parser(words), words)
    assert expected.items() <= given.items()


@pytest.mark.parametrize("line", ["topics stats x", "--url pulsar://h:1 consume x", "no such x"])
def test_without_a_broker_nothing_is_said(
    line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAGNETAR_ADMIN_URL", "http://127.0.0.1:9")
    assert print_names("topic", line.split()) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("words", "asked"), [(["x"], True), (["--url", "pulsar://h:1", "x"], False)]
)
def test_only_the_cluster_that_is_meant_is_asked(
    words: list[str], asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The HTTP address of a broker that only --url names isn't known."""
    calls: list[float] = []
    monkeypatch.setattr(ClusterTarget, "admin_client", lambda _, wait_s: calls.append(wait_s))
    assert print_names("topic", ["consume", *words]) == 0
    assert bool(calls) is asked


def test_arguments_that_are_names_are_found() -> None:
    words = ["topics", "unsubscribe"]
    topics = build_parser(words)._subparsers
    assert topics is not None
    group = topics._group_actions[0].choices["topics"]  # type: ignore[index] # of parsers
    word = group._subparsers._group_actions[0].choices["unsubscribe"]
    kinds = {kind for action in word._actions if (kind := kind_of(action))}
    assert kinds == {"topic", "subscription"}


STUB = f"""#!/bin/sh
test "${VARIABLE}" = topic || exit 1
test "$*" = "--admin-url http://h:1 topics stats $WORD" || exit 1
echo "$WORD"orders
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("typed", "shown"),
    [("persistent://a/b/", "//a/b/orders"), ("", "orders")],
)
def test_bash_asks_with_the_words_as_they_were_typed(
    typed: str, shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", "bash"]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    command = tmp_path / "magnetar"
    command.write_text(STUB)
    command.chmod(0o755)
    line = f"magnetar --admin-url http://h:1 topics stats {typed}"
    asked = (
        f"source script\nCOMP_LINE='{line}'\nCOMP_POINT={len(line)}\n"
        "$(complete -p magnetar | sed 's/.*-F \\([^ ]*\\) .*/\\1/') magnetar\n"
        'echo "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", asked],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "WORD": typed},
    )
    assert done.stdout == f"{shown}\n"
