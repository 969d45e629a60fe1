"""A bookie's port for readers of entries alone, each of whom sees the ledgers of its own role."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import grpc

from magnetar.bookkeeper.auth.bookie_authenticator import BookieAuthenticator
from magnetar.bookkeeper.bookie.read_only_client import ReaderCheck, ReadOnlyBookieClient
from magnetar.bookkeeper.transport import BookieClient
from magnetar.bookkeeper.transport_grpc.bookie_server import BookieServer
from magnetar.bookkeeper.transport_grpc.config import TransportConfig

ReaderCheckOfRole: TypeAlias = "Callable[[str], ReaderCheck]"


class ReadOnlyServer(BookieServer):
    """As its base, of a bookie that nobody can write to by it (``ReadOnlyBookieClient``).

    Args:
        gate, reader_check_of: who a caller is, and what that role may read; None: everybody,
        everything.
    """

    def __init__(
        self,
        bookie_id: str,
        config: TransportConfig,
        credentials: grpc.ServerCredentials | None = None,
        authenticator: BookieAuthenticator | None = None,
        reader_check_of: ReaderCheckOfRole | None = None,
    ) -> None:
        assert (authenticator is None) is (reader_check_of is None)
        super().__init__(bookie_id, config, credentials, authenticator)
        self._reader_check_of = reader_check_of

    async def _called(self, context: Any) -> BookieClient:
        bookie = await super()._called(context)
        if self._reader_check_of is None or self._admissions is None:
            return ReadOnlyBookieClient(bookie)
        return ReadOnlyBookieClient(
            bookie, self._reader_check_of(await self._admissions.role(context))
        )
