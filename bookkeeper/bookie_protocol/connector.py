"""From a bookie's id to its client, for bookies that speak BookKeeper's protocol."""

import asyncio

from magnetar.bookkeeper.bookie_protocol.add_channel import EncodedAdds
from magnetar.bookkeeper.bookie_protocol.config import ProtocolConfig
from magnetar.bookkeeper.bookie_protocol.protocol_client import ProtocolBookieClient
from magnetar.bookkeeper.errors import BookieUnavailableError
from magnetar.bookkeeper.layout.bookkeeper_layout import BookKeeperLayout
from magnetar.bookkeeper.layout.service_info_format import decode_registration
from magnetar.metadata.errors import MetadataError
from magnetar.metadata.store import MetadataStore


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

    def connect(self, bookie_id: str) -> ProtocolBookieClient:
        """The bookie's client; it looks for the bookie when it is first used."""
        client = self._clients.get(bookie_id)
        if client is None:
            client = self._clients[bookie_id] = ProtocolBookieClient(
                bookie_id, self._resolve, self._config, self._layout.digest_of, self._encoded
            )
        return client

    async def close(self) -> None:
        clients, self._clients = list(self._clients.values()), {}
        await asyncio.gather(*(client.close() for client in clients))

    async def _resolve(self, bookie_id: str) -> tuple[str, int]:
        """Where the bookie is; one that isn't registered may still be where it was.

        Raises:
            BookieUnavailableError: its address isn't known.
        """
        try:
            for read_only in (False, True):
                path = self._layout.bookie_path(bookie_id, read_only=read_only)
                found = await self._store.get(path)
                if found is not None:
                    info = decode_registration(bookie_id, found.value)
                    if info.rpc_address is not None:
                        self._known[bookie_id] = info.rpc_address
                    break
        except MetadataError:
            pass  # during an outage of the store the last address is as good as any
        if bookie_id not in self._known:
            raise BookieUnavailableError(f"bookie {bookie_id} isn't registered")
        return self._known[bookie_id]
