"""From a bookie's id to its client, for bookies that speak BookKeeper's protocol."""

import asyncio
import logging
from typing import Final

from magnetar.bookkeeper.bookie_protocol.add_channel import EncodedAdds
from magnetar.bookkeeper.bookie_protocol.config import ProtocolConfig
from magnetar.bookkeeper.bookie_protocol.protocol_client import ProtocolBookieClient
from magnetar.bookkeeper.errors import BookieUnavailableError
from magnetar.bookkeeper.layout.bookkeeper_layout import BookKeeperLayout
from magnetar.bookkeeper.layout.service_info_format import decode_registration
from magnetar.metadata.errors import MetadataError
from magnetar.metadata.store import MetadataStore

_STORE_S_MAX: Final = 2.0
_log = logging.getLogger(__name__)


class ProtocolConnector:
    """Makes the clients of a ``BookiePool``: ``BookiePool(store, connector.connect)``."""

    def __init__(
        self, store: MetadataStore, layout: BookKeeperLayout, config: ProtocolConfig
    ) -> None:
        self._store = store
        self._layout = layout
        self._config = config
        self._clients: dict[str, ProtocolBookieClient] = {}
        self._known: dict[str, tuple[str, int]] = {}
        self._encoded = EncodedAdds()

    def connect(
        self, bookie_id: str, address: tuple[str, int] | None = None
    ) -> ProtocolBookieClient:
        """The bookie's client; it looks for the bookie when it is first used.

        Args:
            address: where it was when last heard of, for outages of the store.
        """
        if address is not None:
            self._known.setdefault(bookie_id, address)
        client = self._clients.get(bookie_id)
        if client is None:
            client = self._clients[bookie_id] = ProtocolBookieClient(
                bookie_id, self.resolve, self._config, self._layout.digest_of, self._encoded
            )
        return client

    async def close(self) -> None:
        clients, self._clients = list(self._clients.values()), {}
        await asyncio.gather(*(client.close() for client in clients))

    async def resolve(self, bookie_id: str) -> tuple[str, int]:
        """Where the bookie is; one that isn't registered may still be where it was.

        Raises:
            BookieUnavailableError: its address isn't known.
        """
        known = self._known.get(bookie_id)
        try:
            # During an outage of the store the last address is as good as any.
            async with asyncio.timeout(None if known is None else _STORE_S_MAX):
                address = await self._look_up(bookie_id) or known
        except (MetadataError, TimeoutError) as error:
            _log.warning("bookie %s: its registration can't be read: %s", bookie_id, error)
            address = known
        if address is None:
            raise BookieUnavailableError(f"bookie {bookie_id} isn't registered")
        self._known[bookie_id] = address
        return address

    async def _look_up(self, bookie_id: str) -> tuple[str, int] | None:
        for read_only in (False, True):
            path = self._layout.bookie_path(bookie_id, read_only=read_only)
            found = await self._store.get(path)
            if found is not None:
                return decode_registration(bookie_id, found.value).rpc_address
        return None
