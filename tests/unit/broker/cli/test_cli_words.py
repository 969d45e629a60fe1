"""The tables of words: whole, and what becomes of a word and its arguments."""

import argparse
import string
from typing import Any

import pytest

from magnetar.broker.cli import multi_call
from magnetar.broker.cli.admin_command import _arguments
from magnetar.broker.cli.admin_commands import GROUPS, AdminCommand, commands_of
from magnetar.broker.cli.argument_values import KINDS
from magnetar.broker.cli.errors import CliError
from magnetar.broker.cli.main import build_parser
from magnetar.broker.cli.request import AdminRequest, request_of

ALL = [(group, name, word) for group in GROUPS for name, word in commands_of(group).items()]
LATEST = 2**63 - 1


def requests(*line: str) -> list[AdminRequest]:
    words = ["admin", *line]
    options = build_parser(words).parse_args(words)
    word = commands_of(options.group)[options.word]
    return [request_of(arguments) for arguments in _arguments(word, options)]


def call(*line: str) -> tuple[str, str, Any]:
    (request,) = requests(*line)
    return request.method, request.target, request.body


@pytest.mark.parametrize(("group", "name", "word"), ALL, ids=[f"{g} {n}" for g, n, _ in ALL])
def test_a_word_is_whole(group: str, name: str, word: AdminCommand) -> None:
    given = {position.strip("[]") for position in word.positionals}
    given |= {option.to.removeprefix("path:").removeprefix("plain_") for option in word.options}
    for path in word.paths:
        places = {field for _, field, _, _ in string.Formatter().parse(path) if field}
        if not word.step:  # a step may fill in places by itself
            assert {place.removeprefix("plain_") for place in places} <= given
    flags = [flag for option in word.options for flag in option.flags]
    assert len(flags) == len(set(flags))
    assert word.help
    assert not word.step or word.step in multi_call.STEPS
    for option in word.options:
        assert option.to.partition(":")[0] in {"query", "path", "field", "body", "step"}
        assert option.kind in {"true", "false", *KINDS}
        assert option.help


def test_every_step_and_kind_is_used() -> None:
    assert {word.step for _, _, word in ALL} - {""} == set(multi_call.STEPS)
    assert {option.kind for _, _, word in ALL for option in word.options} >= set(KINDS)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("tenants list", ("GET", "/admin/v2/tenants", None)),
        (
            "transactions pending-ack-stats -t o -s a/b -l",
            (
                "GET",
                "/admin/v3/transactions/pendingAckStats/public/default/o/a%252Fb"
                "?lowWaterMarks=true",
                None,
            ),
        ),
        (
            "transactions slow-transactions -t 2m -c 3",
            ("GET", "/admin/v3/transactions/slowTransactions/120000?coordinatorId=3", None),
        ),
        (
            "transactions scale-transactionCoordinators -r 20",
            ("POST", "/admin/v3/transactions/transactionCoordinator/replicas", 20),
        ),
        ("tenants delete -f a/b", ("DELETE", "/admin/v2/tenants/a%2Fb?force=true", None)),
        (
            "tenants update t -r a,b -r c",
            ("POST", "/admin/v2/tenants/t", {"adminRoles": ["a", "b", "c"]}),
        ),
        (
            "namespaces create t/n -b 4 --clusters x",
            (
                "PUT",
                "/admin/v2/namespaces/t/n",
                {"bundles": {"numBundles": 4}, "replication_clusters": ["x"]},
            ),
        ),
        (
            "namespaces set-message-ttl t/n -ttl 2h",
            ("POST", "/admin/v2/namespaces/t/n/messageTTL", 7200),
        ),
        (
            "namespaces set-retention t/n -t -1 -s 16G",
            (
                "POST",
                "/admin/v2/namespaces/t/n/retention",
                {"retentionTimeInMinutes": -1, "retentionSizeInMB": 16384},
            ),
        ),
        (
            "namespaces set-dispatch-rate t/n -md 5",
            (
                "POST",
                "/admin/v2/namespaces/t/n/dispatchRate",
                {
                    "dispatchThrottlingRateInMsg": 5,
                    "dispatchThrottlingRateInByte": -1,
                    "ratePeriodInSecond": 1,
                    "relativeToPublishRate": False,
                },
            ),
        ),
        (
            "namespaces set-deduplication t/n --disable",
            ("POST", "/admin/v2/namespaces/t/n/deduplication", False),
        ),
        (
            "namespaces set-schema-autoupdate-strategy t/n -d",
            (
                "PUT",
                "/admin/v2/namespaces/t/n/schemaAutoUpdateCompatibilityStrategy",
                "AutoUpdateDisabled",
            ),
        ),
        (
            "namespaces set-schema-autoupdate-strategy t/n -c none",
            (
                "PUT",
                "/admin/v2/namespaces/t/n/schemaAutoUpdateCompatibilityStrategy",
                "AlwaysCompatible",
            ),
        ),
        (
            "namespaces set-schema-compatibility-strategy t/n -c full",
            ("PUT", "/admin/v2/namespaces/t/n/schemaCompatibilityStrategy", "FULL"),
        ),
        (
            "namespaces get-schema-validation-enforce t/n -ap",
            ("GET", "/admin/v2/namespaces/t/n/schemaValidationEnforced?applied=true", None),
        ),
        (
            "topicPolicies set-message-ttl x -t 60 -g",
            (
                "POST",
                "/admin/v2/persistent/public/default/x/messageTTL?messageTTL=60&isGlobal=true",
                None,
            ),
        ),
        (
            "topics stats non-persistent://t/n/a%20b/c",
            ("GET", "/admin/v2/non-persistent/t/n/a%2520b%2Fc/stats", None),
        ),
        (
            "topics skip x -s a/b -n 5",
            ("POST", "/admin/v2/persistent/public/default/x/subscription/a%252Fb/skip/5", None),
        ),
        (
            "namespaces unsubscribe t/n -s a/b",
            ("POST", "/admin/v2/namespaces/t/n/unsubscribe/a%2Fb", None),
        ),
        (
            "topics update-properties x -p a=1,b=2 -p c=3=4",
            (
                "PUT",
                "/admin/v2/persistent/public/default/x/properties",
                {"a": "1", "b": "2", "c": "3=4"},
            ),
        ),
        (
            "topics get-backlog-size x -m 3:4",
            (
                "PUT",
                "/admin/v2/persistent/public/default/x/backlogSize",
                {"ledgerId": 3, "entryId": 4, "partitionIndex": -1},
            ),
        ),
        (
            "subscriptions update-properties x -s s --clear",
            ("PUT", "/admin/v2/persistent/public/default/x/subscription/s/properties", {}),
        ),
        ("schemas delete t/n/x", ("DELETE", "/admin/v2/schemas/t/n/x/schema", None)),
        ("schemas get x -v 3", ("GET", "/admin/v2/schemas/public/default/x/schema/3", None)),
        ("namespaces unload t/n", ("PUT", "/admin/v2/namespaces/t/n/unload", None)),
        (
            "namespaces unload t/n -b 0x0_0x1 -d b:1",
            ("PUT", "/admin/v2/namespaces/t/n/0x0_0x1/unload?destinationBroker=b%3A1", None),
        ),
        (
            "namespaces clear-backlog t/n -s a -b 0x0_0x1",
            ("POST", "/admin/v2/namespaces/t/n/0x0_0x1/clearBacklog/a", None),
        ),
        (
            "namespaces clear-backlog t/n -s a",
            ("POST", "/admin/v2/namespaces/t/n/clearBacklog/a", None),
        ),
        ("brokers list c", ("GET", "/admin/v2/brokers/c", None)),
        ("brokers list", ("GET", "/admin/v2/brokers", None)),
        (
            "topicPolicies get-subscription-dispatch-rate x -s a",
            ("GET", "/admin/v2/persistent/public/default/x/a/dispatchRate", None),
        ),
    ],
)
def test_a_line_becomes_a_request(line: str, expected: tuple[str, str, Any]) -> None:
    assert call(*line.split(" ")) == expected


def test_several_things_are_several_requests() -> None:
    paths = [request.path for request in requests("topics", "delete", "a", "t/n/b")]
    assert paths == ["/admin/v2/persistent/public/default/a", "/admin/v2/persistent/t/n/b"]


@pytest.mark.parametrize(
    "line",
    [
        *("topics stats t/n", "topics stats http://a/b/c", "topics stats persistent://t//x"),
        *("namespaces policies t", "namespaces policies t/n/x", "tenants get ''"),
        *("resource-quotas get -n t/n", "resource-quotas get -b 0x0_0x1"),
    ],
)
def test_a_name_that_is_none_or_lacks_another_is_refused(line: str) -> None:
    with pytest.raises(CliError):
        requests(*line.replace("''", "").split(" "))


@pytest.mark.parametrize(("word", "like"), [("tpics", "topics"), ("produc", "produce")])
def test_a_command_that_is_misspelt(
    word: str, like: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        build_parser([word]).parse_args([word])
    assert f"There is no command {word}. Names like it: {like}\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("namespaces set-retention t/n -t soon -s 1M", "not a duration"),
        ("namespaces set-retention t/n -t 1h -s big", "not a size"),
        ("namespaces set-deduplication t/n", "one of the arguments"),
        ("namespaces set-deduplication t/n -e -d", "not allowed with"),
        ("topics get-backlog-size x -m now", "not a message id"),
        ("topics update-properties x -p a", "KEY=VALUE"),
        ("topics create-subscription x", "are required"),
        ("topics lst", "There is no word lst. Names like it: list"),
        ("topics no-such-word", "There is no word no-such-word, nor one with a name like it"),
        ("topcs list", "There is no group topcs. Names like it: topics"),
        ("schemas upload x -f /no/such/file", "No such file"),
    ],
)
def test_a_wrong_argument_is_named(
    line: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        requests(*line.split(" "))
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        *(("bytes", "10M", 10 << 20), ("bytes", "3t", 3 << 40), ("bytes", "-1", -1)),
        *(("megabytes", "4096", 0), ("megabytes", "2G", 2048), ("megabytes", "-1", -1)),
        *(("seconds", "90", 90), ("seconds", "1w", 604_800), ("minutes", "7", 7)),
        *(("minutes", "2h", 120), ("minutes-of-seconds", "120", 2), ("millis", "1s", 1000)),
        ("message-id", "latest", {"ledgerId": LATEST, "entryId": LATEST, "partitionIndex": -1}),
        ("message-id", "3:4:5", {"ledgerId": 3, "entryId": 4, "partitionIndex": -1}),
        ("list", " a, ,b", ["a", "b"]),
    ],
)
def test_values(kind: str, text: str, value: Any) -> None:
    assert KINDS[kind][1](text) == value


def test_times() -> None:
    from magnetar.broker.cli.argument_values import parse_time

    assert parse_time("2026-11-21T15:00:00Z") == parse_time("2026-11-21T16:00:00+01:00")
    assert parse_time("1795273200000") == 1_795_273_200_000
    with pytest.raises(argparse.ArgumentTypeError):
        parse_time("today")
