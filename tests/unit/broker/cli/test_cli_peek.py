"""Messages of a backlog as `peek-messages` shows them beside transactions."""

import json
from collections.abc import Mapping

import pytest

from magnetar.broker.cli.admin_client import AdminResponse
from magnetar.broker.cli.admin_command import CommandRun, _arguments
from magnetar.broker.cli.admin_commands import commands_of
from magnetar.broker.cli.main import build_parser
from magnetar.broker.cli.multi_call import peek_messages

COMMITTED = {"X-Pulsar-txn-uncommitted": "false", "X-Pulsar-txn-aborted": "false"}
ABORTED = {**COMMITTED, "X-Pulsar-txn-aborted": "true"}
OPEN = {**COMMITTED, "X-Pulsar-txn-uncommitted": "true"}
MARKER = {"X-Pulsar-marker-type": "21"}
BACKLOG = (
    ("c", COMMITTED),
    ("", {**COMMITTED, **MARKER}),
    ("a", ABORTED),
    ("", {**ABORTED, **MARKER}),
    ("p", {"X-Pulsar-txn-uncommitted": "false"}),
    ("o", OPEN),
    ("q", {"X-Pulsar-txn-uncommitted": "true"}),
)


class StoredBacklog:
    """Answers for the nth message; in the place of `AdminClient`."""

    asked = 0

    def call(self, method: str, target: str, *_: object, **__: object) -> AdminResponse:
        self.asked = int(target.rpartition("/")[2])
        if self.asked > len(BACKLOG):
            return AdminResponse(404, b'{"reason":"Message not found"}')
        value, headers = BACKLOG[self.asked - 1]
        return AdminResponse(200, value.encode(), _lower(headers))


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


@pytest.mark.parametrize(
    ("options", "shown", "asked"),
    [
        ("-n 9", "c p", 6),
        ("-n 2", "c p", 5),
        ("-n 1", "c", 1),
        ("-n 9 -til READ_UNCOMMITTED", "c a p o q", 8),
        ("-n 3 --transaction-isolation-level READ_UNCOMMITTED", "c a p", 5),
        ("-n 9 -ssm", "c - p", 6),
        ("-n 9 --show-server-marker -til READ_UNCOMMITTED", "c - a - p o q", 8),
    ],
)
def test_what_consumers_do_not_get_is_left_out(
    capsys: pytest.CaptureFixture[str], options: str, shown: str, asked: int
) -> None:
    words = ["admin", "topics", "peek-messages", "t", "-s", "s", *options.split()]
    parsed = build_parser(words).parse_args(words)
    (arguments,) = _arguments(commands_of("topics")["peek-messages"], parsed)
    backlog = StoredBacklog()
    assert peek_messages(CommandRun(arguments, backlog, as_json=True)) == 0  # type: ignore[arg-type]
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["payload"] or "-" for line in lines] == shown.split()
    assert backlog.asked == asked
