"""Options that may stand before a command's name and behind it."""

import argparse
import shlex

import pytest

from magnetar.broker.cli.admin_commands import GROUPS
from magnetar.broker.cli.global_options import ADMIN, CLIENTS, misplaced
from magnetar.broker.cli.main import build_parser, main


def parsed(line: str) -> argparse.Namespace:
    words = shlex.split(line)
    return build_parser(words).parse_args(words)


@pytest.mark.parametrize(
    "line",
    [
        "--url U --auth-plugin token --auth-params P -ml 1k produce T -m x",
        "produce --url U --auth-plugin token --auth-params P -ml 1k T -m x",
        "--url U -ml 1k produce T -m x --auth-plugin token --auth-params P",
    ],
)
def test_of_clients(line: str) -> None:
    options = parsed(line)
    assert (options.url, options.auth_plugin, options.auth_params) == ("U", "token", "P")
    assert (options.memory_limit, options.listener_name) == (1024, None)


@pytest.mark.parametrize(
    "line",
    [
        "--admin-url U --json --request-timeout 5 admin tenants list",
        "admin --admin-url U --json --request-timeout 5 tenants list",
        "admin tenants --admin-url U --json --request-timeout 5 list",
        "admin tenants list --admin-url U --json --request-timeout 5",
        "--json admin --request-timeout 5 tenants list --admin-url U",
    ],
)
def test_of_admin(line: str) -> None:
    options = parsed(line)
    assert (options.admin_url, options.json, options.request_timeout) == ("U", True, 5.0)


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("topics list a/b --json", "admin topics list a/b --json"),
        ("--profile admin --json tenants list", "--profile admin --json admin tenants list"),
        ("tenants create admin", "admin tenants create admin"),
        ("--admin-url=U bookies --auth-plugin tls list-bookies", "admin bookies list-bookies"),
    ],
)
def test_a_group_may_stand_alone(short: str, long: str) -> None:
    options = parsed(short)
    assert {**vars(options), "admin_url": None, "auth_plugin": None} == vars(parsed(long))


def test_no_group_is_called_like_a_command() -> None:
    commands = build_parser([])._subparsers
    assert commands is not None
    assert GROUPS.keys().isdisjoint(commands._group_actions[0].choices or ())


def test_the_nearest_one_holds() -> None:
    assert parsed("--url a produce --url b T").url == "b"
    assert parsed("--admin-url a admin tenants list").admin_url == "a"


def test_a_word_keeps_its_own_meaning() -> None:
    options = parsed("--auth-plugin tls admin clusters create C --auth-plugin token")
    assert options.auth_plugin == "tls"


def test_defaults() -> None:
    options = parsed("admin tenants list")
    assert (options.admin_url, options.json, options.request_timeout) == (None, False, 60.0)


@pytest.mark.parametrize(
    "line",
    [
        "--url U version",
        "--url U admin tenants list",
        "--url U --admin-url V version",
        "--admin-url U produce T -m x",
        "--json consume T -s s",
        "--profile p standalone",
    ],
)
def test_what_says_nothing_to_a_command_is_refused(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(shlex.split(line))
    assert stopped.value.code == 2
    assert "says nothing to" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["produce T -m x", "consume T -s s", "doctor", "tenants list"])
def test_both_addresses_may_be_given_to_what_needs_one(line: str) -> None:
    options = parsed(f"--url U --admin-url V {line}")
    assert misplaced(options, CLIENTS if line.endswith(("x", "s s")) else ADMIN) is None


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("explain T", ["There is no command explain. Names like it: topics explain"]),
        ("standalone --http-port 1", ["usage: magnetar standalone", "--http-port.", "--web-port"]),
        ("topics stats T --precise", ["usage: magnetar topics stats", "--get-precise-backlog"]),
        ("produce T -m x more", ["usage: magnetar produce", "unrecognized arguments: more"]),
    ],
)
def test_what_a_command_does_not_know_is_told_with_what_is_like_it(
    line: str, told: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(shlex.split(line))
    error = capsys.readouterr().err
    assert [each for each in told if each not in error] == []
    assert "--memory-limit" not in error or "produce" in line  # no usage of the whole command line
