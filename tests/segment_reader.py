"""Reads a topic past its broker: from the bookies and copies that ``segments`` tells of."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from magnetar.bookkeeper.auth.token_source import TokenSource
from magnetar.bookkeeper.bookie_protocol.add_channel import EncodedAdds
from magnetar.bookkeeper.bookie_protocol.own_client import OwnBookieClient
from magnetar.bookkeeper.bookie_protocol.own_login import OwnLogin
from magnetar.bookkeeper.client.config import ClientConfig
from magnetar.bookkeeper.client.ledger_reader import LedgerReader
from magnetar.bookkeeper.client.ledger_store import LedgerStore
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.client.replica_choice import Replicas
from magnetar.bookkeeper.ledger_metadata import EnsembleSegment, LedgerMetadata, LedgerState
from magnetar.bookkeeper.transport_grpc.config import TransportConfig
from magnetar.broker.protocol.framing import parse_entry_body
from magnetar.managed_ledger.offload.context import LedgerCopy
from magnetar.managed_ledger.offload.file_store import FilesystemOffloader
from magnetar.metadata.embedded import EmbeddedMetadataStore

T = TypeVar("T")

RUN_BYTES_MAX = 64 << 10
TRANSPORT = TransportConfig(backoff_first_s=0.02, backoff_max_s=0.1)


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """Of an entry that is one message."""

    ledger_id: int
    entry_id: int
    payload: bytes


class SegmentReader:
    """Made of one answer; nothing else is known of the cluster.

    Args:
        token: instead of the answer's; "": none is shown.
        trust: PEM of who signs the bookies' certificates; b"": no TLS.
    """

    def __init__(
        self, answer: dict[str, Any], *, token: str | None = None, trust: bytes = b""
    ) -> None:
        self.answer = answer
        assert answer["headBytes"] == 0
        self._token = answer.get("bookieToken", "") if token is None else token
        self._trust = trust
        self._clients: dict[str, OwnBookieClient] = {}
        self._store = EmbeddedMetadataStore.open(None)  # knows nothing
        self._pool = BookiePool(None, self.bookie)
        self._copies = FilesystemOffloader(1, 1)

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()
        await self._store.close()
        self._copies.close()

    def bookie(self, bookie_id: str) -> OwnBookieClient | None:
        """None: nobody can reach it."""
        found = self._clients.get(bookie_id)
        address = self.answer["bookies"].get(bookie_id)
        if found is None and address is not None:
            token = TokenSource(f"token:{self._token}") if self._token else None
            login = OwnLogin(lambda: str(self.answer["instanceId"]), token)
            place = address["host"], address["port"]

            async def resolve(_: str) -> tuple[str, int]:
                return place

            found = self._clients[bookie_id] = OwnBookieClient(
                *(bookie_id, resolve, TRANSPORT.protocol(login, self._context), EncodedAdds())
            )
        return found

    @property
    def _context(self) -> Callable[[], ssl.SSLContext] | None:
        if not self._trust:
            return None
        return lambda: ssl.create_default_context(cadata=self._trust.decode())

    async def everything(self) -> list[StoredMessage]:
        """From ``first`` to ``lastConfirmed``."""
        first, last = self.answer["first"], self.answer["lastConfirmed"]
        found: list[StoredMessage] = []
        for row in self.answer["ledgers"]:
            assert row["ledgerId"] <= last["ledgerId"]
            if row["ledgerId"] >= first["ledgerId"]:
                found += await self.ledger(row)
        if found:
            assert (found[0].ledger_id, found[0].entry_id) == (first["ledgerId"], first["entryId"])
            assert (found[-1].ledger_id, found[-1].entry_id) == (
                last["ledgerId"],
                last["entryId"],
            )
        return found

    async def ledger(self, row: dict[str, Any]) -> list[StoredMessage]:
        """All its entries, from bookies if they have it."""
        ledger_id, end = row["ledgerId"], row["entries"]
        if not end:
            return []
        reader = await self._copy(row) if "metadata" not in row else self._ledger_reader(row)
        found: list[StoredMessage] = []
        size = 0
        while len(found) < end:
            run = await reader.read(len(found), end - 1, RUN_BYTES_MAX)
            assert run.bodies
            for body in run.bodies:
                _, payload = parse_entry_body(body)
                found.append(StoredMessage(ledger_id, len(found), bytes(payload)))
                size += len(body)
        assert size == row["size"]
        return found

    def _ledger_reader(self, row: dict[str, Any]) -> LedgerReader:
        config = ClientConfig()
        return LedgerReader(
            *(metadata_of(row), row["entries"] - 1, LedgerStore(self._store), self._pool),
            *(config, Replicas(self._pool, config.reads)),
        )

    async def _copy(self, row: dict[str, Any]) -> Any:
        fields = row["copy"]
        copy = LedgerCopy(row["ledgerId"], fields["uuid"], fields["driver"], fields["location"])
        return await self._copies.open(copy)


def metadata_of(row: dict[str, Any]) -> LedgerMetadata:
    """As far as a reader needs them."""
    fields = row["metadata"]
    return LedgerMetadata(
        row["ledgerId"],
        fields["ensembleSize"],
        fields["writeQuorum"],
        fields["ackQuorum"],
        segments=tuple(
            EnsembleSegment(x["firstEntry"], tuple(x["bookies"])) for x in fields["ensembles"]
        ),
        state=LedgerState.CLOSED,
        last_entry=row["entries"] - 1,
    )


@contextlib.asynccontextmanager
async def reader_of(
    answer: dict[str, Any], *, token: str | None = None, trust: bytes = b""
) -> AsyncIterator[SegmentReader]:
    """See ``SegmentReader``."""
    reader = SegmentReader(answer, token=token, trust=trust)
    try:
        yield reader
    finally:
        await reader.close()


def with_reader(
    answer: dict[str, Any],
    work: Callable[[SegmentReader], Awaitable[T]],
    *,
    token: str | None = None,
    trust: bytes = b"",
) -> T:
    """For tests that have no loop of their own."""

    async def run() -> T:
        async with reader_of(answer, token=token, trust=trust) as reader:
            return await work(reader)

    return asyncio.run(run())


def read_everything(answer: dict[str, Any], *, trust: bytes = b"") -> list[StoredMessage]:
    """See ``SegmentReader.everything``."""
    return with_reader(answer, SegmentReader.everything, trust=trust)
