"""The streaming source at a broker that wants tokens: of a role that may consume, and no more."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pulsar
import pytest

from magnetar.broker.cli.admin_client import AdminClient
from magnetar.pipeline.errors import SegmentsUnavailableError
from tests.official_client import open_client
from tests.pipeline.stream_query import Query, numbered
from tests.pipeline.topics import WAIT_S, Addresses, send_all
from tests.standalone_process import StandaloneProcess

SETTINGS = {
    "authenticationEnabled": "true",
    "authenticationProviders": "token",
    "authorizationEnabled": "true",
    "superUserRoles": "admin",
    "managedLedgerMaxEntriesPerLedger": "10",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "defaultRetentionTimeInMinutes": "-1",
    "defaultRetentionSizeInMB": "-1",
}
TOPIC = "persistent://public/default/guarded"


class Guarded:
    """A broker, and tokens that are signed with its key of the moment."""

    def __init__(self, process: StandaloneProcess, folder: Path) -> None:
        self.process, self._folder = process, folder
        self._key = b""

    def start(self, key: bytes) -> None:
        self._key = key
        (self._folder / "secret.key").write_bytes(key)
        self.process.start(same_ports=bool(self.process.service_url))

    def token(self, role: str) -> str:
        return jwt.encode({"sub": role}, self._key, "HS256")

    def write_token(self, role: str) -> str:
        """The parameters of a plugin that reads it from a file."""
        path = self._folder / f"{role}.token"
        path.write_text(self.token(role))
        return f"file://{path}"

    def send(self, count: int, first: int = 0) -> list[bytes]:
        client = open_client(
            self.process.service_url,
            authentication=pulsar.AuthenticationToken(self.token("admin")),
            operation_timeout_seconds=int(WAIT_S),
        )
        sent = send_all(client, TOPIC, numbered(count, first), batching_enabled=False)
        client.close()
        return [each.value for each in sent]

    def query(self, params: str, **options: Any) -> Query:
        at = Addresses(self.process.service_url, self.process.admin_url)
        return Query(at, None, subscribe=TOPIC, authPlugin="token", authParams=params, **options)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    settings = {**SETTINGS, "tokenSecretKey": f"file://{tmp_path / 'secret.key'}"}
    words = [word for pair in settings.items() for word in ("--set", "=".join(pair))]
    process = StandaloneProcess(tmp_path / "data", *words)
    made = Guarded(process, tmp_path)
    made.start(bytes(range(32)))
    try:
        headers = {"Authorization": f"Bearer {made.token('admin')}"}
        with AdminClient(process.admin_url, headers=headers) as admin:
            path = "/admin/v2/namespaces/public/default/permissions/reader"
            admin.json("POST", path, ["consume"])
        yield made
    finally:
        process.__exit__(None, None, None)


def test_a_stream_of_a_role_that_may_only_consume(guarded: Guarded) -> None:
    """Limits are counted at bookies, tasks read there, and the cursor is moved: each needs it."""
    sent = guarded.send(45)
    reader = guarded.write_token("reader")
    options = {"maxOffsetsPerTrigger": 20, "cursor": "spark", "minPartitions": 2}
    with guarded.query(reader, **options) as query:
        batches = [[row.value for row in batch] for batch in query.drain()]
        assert [len(batch) for batch in batches] == [20, 20, 5]
        assert [value for batch in batches for value in batch] == sent
        more = guarded.send(10, 45)

        # The key is changed, so that the token and those for bookies are refused.
        guarded.process.stop()
        guarded.start(bytes(range(100, 132)))
        with pytest.raises(SegmentsUnavailableError, match="guarded: HTTP 401"):
            query.plan()
        guarded.write_token("reader")  # the same query goes on with what the file holds now
        assert [row.value for row in query.batch()] == more
        stats_of = {"Authorization": f"Bearer {guarded.token('admin')}"}
        with AdminClient(guarded.process.admin_url, headers=stats_of) as admin:
            path = f"/admin/v2/{TOPIC.replace('://', '/')}/stats"
            backlog = admin.json("GET", path)["subscriptions"]["spark"]["msgBacklog"]
        assert backlog == 1


def test_who_may_not_consume_reads_nothing(guarded: Guarded) -> None:
    guarded.send(5)
    for params, told in (
        (f"token:{guarded.token('stranger')}", "guarded: HTTP 40[13]"),
        ("token:nonsense", "guarded: HTTP 401"),
    ):
        with pytest.raises(SegmentsUnavailableError, match=told):
            guarded.query(params)
