"""The embedded bookie's port for readers in other processes: opened when the first one asks.

Until then it costs nothing: no socket, no thread, no import. Behind it entries can be read, by
BookKeeper's protocol after our own login, and nothing can be changed. With authentication the
broker gives its readers a token for it, which is good for the ledgers of the one topic that they
were allowed to consume.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import importlib
import logging
import secrets
import ssl
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Final

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.add_limits import AddLimits
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.cookie import read_instance_id
from magnetar.bookkeeper.bookie_client import BookieClient
from magnetar.bookkeeper.bookie_protocol.config import FRAME_BYTES_MAX
from magnetar.bookkeeper.byte_semaphore import ByteSemaphore
from magnetar.bookkeeper.client.ledger_store import LedgerStore
from magnetar.bookkeeper.errors import LedgerError
from magnetar.bookkeeper.tls import TlsFiles, server_context
from magnetar.broker.config import BrokerConfig
from magnetar.broker.errors import ServiceNotReadyError
from magnetar.broker.listener.file_limit import file_limit
from magnetar.broker.service.bookie_access import BookieAccess
from magnetar.managed_ledger.orphan_ledgers import log_of
from magnetar.metadata.errors import MetadataError
from magnetar.metadata.store import MetadataStore

if TYPE_CHECKING:
    from magnetar.bookkeeper.auth.bookie_authenticator import BookieAuthenticator
    from magnetar.bookkeeper.bookie.read_only_client import ReaderCheck
    from magnetar.bookkeeper.bookie_protocol.own_login import AdmittedClient
    from magnetar.bookkeeper.bookie_protocol.server import ProtocolServer

logger = logging.getLogger(__name__)

_IMPORTED: Final = "magnetar.bookkeeper.bookie_protocol.server"
_MIB: Final = 1024 * 1024
_HOUR_S: Final = 3600
_TOKEN_HOURS: Final = 24
"""A token is good for at least so long: jobs read for hours by what they were told at first."""
_LEDGERS_MAX: Final = 10_000
"""Whose topics are remembered."""


class EmbeddedBookieServer:
    """``BookieAddressResolver`` of a process whose only bookie is its own.

    Attributes:
        port: -1: not open.
    """

    def __init__(self, config: BrokerConfig, store: MetadataStore, bookie: Bookie) -> None:
        self.port = -1
        self._config = config
        self._store = store
        self._bookie = bookie
        self._server: ProtocolServer | None = None
        self._opening: asyncio.Task[None] | None = None
        self._instance_id = ""
        self._tokens = ReaderTokens(LedgerStore(store)) if config.authentication_enabled else None

    async def find(self, bookie_ids: Collection[str], log_name: str) -> BookieAccess:
        """See ``BookieAddressResolver``. Raises ServiceNotReadyError: the port can't be opened."""
        bookie_id = self._bookie.bookie_id
        if bookie_id not in bookie_ids or self._config.bookie_port < 0:
            return BookieAccess({})
        await self._open_once()
        return BookieAccess(
            {bookie_id: (self._config.advertised_host, self.port)},
            self._instance_id,
            "" if self._tokens is None else self._tokens.token_for(log_name),
        )

    async def close(self) -> None:
        """Cut off whoever reads."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        if self._server is not None:
            await self._server.close()
            self._server, self.port = None, -1

    async def _open_once(self) -> None:
        if self._server is not None:
            return
        if self._opening is None or self._opening.done():
            self._opening = asyncio.get_running_loop().create_task(self._open())
        try:
            await asyncio.shield(self._opening)  # a client that goes away doesn't end it for others
        except (OSError, ValueError) as error:
            reason = f"the port for readers of the bookie can't be opened: {error}"
            raise ServiceNotReadyError(reason) from error

    async def _open(self) -> None:
        # In a thread: others are served meanwhile.
        await asyncio.to_thread(importlib.import_module, _IMPORTED)
        from magnetar.bookkeeper.bookie.read_only_client import ReadOnlyBookieClient
        from magnetar.bookkeeper.bookie_protocol.server import ProtocolServer

        config, tokens = self._config, self._tokens
        self._instance_id = await read_instance_id(self._store)

        def view_of(client: AdmittedClient) -> BookieClient:
            check = None if tokens is None else tokens.reader_check_of(client.role)
            return ReadOnlyBookieClient(self._bookie, check)

        server = ProtocolServer(
            FRAME_BYTES_MAX,
            _MIB,  # of adds, which are refused
            AddLimits(_MIB),
            ByteSemaphore(64 * _MIB),
            max(1, file_limit() // 8),
            _tls(config),
            needs_login=True,
            own_frame_bytes_max=2 * _MIB,
            authenticator=None if tokens is None else tokens.authenticator(),
            view_of=view_of,
        )
        server.serve(ReadOnlyBookieClient(self._bookie), self._instance_id)
        port = await server.listen(config.bind_address or "::", config.bookie_port)
        self._server, self.port = server, port
        logger.info("the bookie's entries can be read at port %d", port)


def _tls(config: BrokerConfig) -> Callable[[], ssl.SSLContext] | None:
    """The broker's own, if it serves nobody without TLS."""
    if config.broker_service_port >= 0 or config.web_service_port >= 0:
        return None
    files = TlsFiles(
        config.tls_certificate_file_path,
        config.tls_key_file_path,
        "" if config.tls_allow_insecure_connection else config.tls_trust_certs_file_path,
        config.tls_require_trusted_client_cert_on_connect,
    )
    return partial(server_context, files)


class ReaderTokens:
    """Tokens that let their bearers read one log, signed with a key that this process made up."""

    def __init__(self, ledgers: LedgerStore, clock_s: Callable[[], float] = time.time) -> None:
        self._ledgers = ledgers
        self._clock_s = clock_s
        self._key = secrets.token_bytes(32)
        self._roles: dict[int, str] = {}  # of ledgers; "": not a log's

    def token_for(self, log_name: str) -> str:
        """The same for an hour, so that who asks often shows the same one."""
        import jwt  # loaded with the authenticator

        until_s = (int(self._clock_s()) // _HOUR_S + 1 + _TOKEN_HOURS) * _HOUR_S
        return jwt.encode({"sub": _role_of(log_name), "exp": until_s}, self._key, "HS256")

    def authenticator(self) -> BookieAuthenticator:
        """Lets in whoever shows a token of ours."""
        from magnetar.bookkeeper.auth.bookie_authenticator import (
            EVERYBODY,
            AuthSettings,
            BookieAuthenticator,
        )

        key = f"data:;base64,{base64.b64encode(self._key).decode()}"
        settings = AuthSettings(
            providers=("token",), secret_keys=(key,), allowed_roles=frozenset({EVERYBODY})
        )
        return BookieAuthenticator(settings, clock_s=self._clock_s)

    def reader_check_of(self, role: str) -> ReaderCheck:
        """Decides which ledgers the bearer of a token may read."""

        async def may_read(ledger_id: int) -> int:
            found = self._roles.get(ledger_id)
            if found is None:
                try:
                    metadata = await self._ledgers.read(ledger_id)
                except (LedgerError, MetadataError) as error:
                    logger.warning("ledger %d: whose it is can't be read: %s", ledger_id, error)
                    return codes.UNAVAILABLE
                if metadata is None:
                    return codes.NO_LEDGER  # deleted for good, or never there
                log_name = log_of(metadata.metadata)
                found = "" if log_name is None else _role_of(log_name)
                self._remember(ledger_id, found)
            return codes.OK if found == role else codes.UNAUTHORIZED

        return may_read

    def _remember(self, ledger_id: int, role: str) -> None:
        if len(self._roles) >= _LEDGERS_MAX:
            del self._roles[next(iter(self._roles))]  # the oldest
        self._roles[ledger_id] = role


def _role_of(log_name: str) -> str:
    """Short and printable, however long the name is and whatever is in it."""
    return hashlib.sha256(log_name.encode()).hexdigest()
