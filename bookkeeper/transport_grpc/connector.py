"""From a bookie's id to its client: registrations say where it is."""

import asyncio
import logging

from magnetar.bookkeeper.auth.token_source import TokenSource
from magnetar.bookkeeper.bookie_protocol.add_channel import EncodedAdds
from magnetar.bookkeeper.errors import BookieUnavailableError
from magnetar.bookkeeper.layout.layout import JsonLayout, Layout
from magnetar.bookkeeper.layout.service_info_format import decode_registration
from magnetar.bookkeeper.service_info import AVAILABLE_PATH, READ_ONLY_NAME, ServiceInfo
from magnetar.bookkeeper.tls import TlsFiles
from magnetar.bookkeeper.transport_grpc.config import TransportConfig
from magnetar.bookkeeper.transport_grpc.remote_bookie import BookieAddress, RemoteBookieClient
from magnetar.metadata.errors import MetadataError
from magnetar.metadata.paths import decode_name
from magnetar.metadata.store import EventType, MetadataEvent, MetadataStore, SessionEvent, Watch

_log = logging.getLogger(__name__)

_INSTANCE_ID_PATH = "/ledgers/INSTANCEID"
_STORE_S_MAX = 2.0  # for the store to say where a bookie is whose last address is known


class BookieConnector:
    """Makes the remote clients of a ``BookiePool``: ``BookiePool(store, connector.connect)``.

    Registrations are followed, too: a bookie whose name was taken over by another process (its disk
    was lost, say) may still run, cut off from the store, and still confirm entries that the new one
    will never have. A client that sees the new registration must leave the old process.

    Args:
        tls: None: plain connections.
        layout: of the cluster; None: our own.

    Raises:
        KeyFormatError: ``config.token`` is none.
    """

    def __init__(
        self,
        store: MetadataStore,
        config: TransportConfig,
        tls: TlsFiles | None = None,
        layout: Layout | None = None,
    ) -> None:
        self._store = store
        self._layout = layout or JsonLayout()
        self._config = config
        self._tls = tls
        self._token = TokenSource(config.token) if config.token else None
        self._instance_id = ""
        self._clients: dict[str, RemoteBookieClient] = {}
        self._known: dict[str, BookieAddress] = {}  # last address of each bookie
        self._encoded = EncodedAdds()
        self._watches: list[Watch] = []
        self._looking: dict[str, asyncio.Task[None]] = {}  # bookie -> a look at its registration

    async def start(self) -> None:
        """Read what can't be read during an outage of the store: the cluster's name.

        Raises:
            MetadataError: the store failed.
        """
        await self._read_instance_id()

    def connect(self, bookie_id: str, info: ServiceInfo | None = None) -> RemoteBookieClient:
        """The bookie's client; it looks for the bookie when it is first used.

        Args:
            info: its registration when last read, for outages of the store.
        """
        if info is not None and (address := _address(info, self._instance_id)) is not None:
            self._known.setdefault(bookie_id, address)
        if not self._watches:
            self._watches = [
                self._store.watch(AVAILABLE_PATH, self._on_event),
                self._store.on_session_event(self._on_session_event),
            ]
        client = self._clients.get(bookie_id)
        if client is None:
            client = self._clients[bookie_id] = RemoteBookieClient(
                *(bookie_id, self.resolve, self._config, self._tls, self._encoded),
                token=self._token,
            )
        return client

    async def resolve(self, bookie_id: str) -> BookieAddress:
        """Where the bookie is; one that isn't registered may still be where it was.

        That is safe to try: another bookie at that address refuses the calls.

        Raises:
            BookieUnavailableError: its address is not known.
        """
        known = self._known.get(bookie_id)
        try:
            # During an outage of the store the last address is as good as any.
            async with asyncio.timeout(None if known is None else _STORE_S_MAX):
                address = await self._look_up(bookie_id)
        except (MetadataError, TimeoutError) as error:
            _log.warning("bookie %s: its registration can't be read: %s", bookie_id, error)
            address = None
        if address is not None:
            self._known[bookie_id] = address
            return address
        if known is None:
            raise BookieUnavailableError(f"bookie {bookie_id} isn't registered")
        return known

    async def _look_up(self, bookie_id: str) -> BookieAddress | None:
        instance_id = await self._read_instance_id()
        for read_only in (False, True):
            path = self._layout.bookie_path(bookie_id, read_only=read_only)
            found = await self._store.get(path)
            if found is not None:
                info = decode_registration(bookie_id, found.value)
                if (address := _address(info, instance_id)) is not None:
                    return address
        return None

    def _on_event(self, event: MetadataEvent) -> None:
        name = event.path.rpartition("/")[2]
        if event.type in (EventType.CREATED, EventType.MODIFIED) and name != READ_ONLY_NAME:
            self._look_soon(decode_name(name))

    def _on_session_event(self, event: SessionEvent) -> None:
        # Watch events may have been lost meanwhile.
        if event in (SessionEvent.RECONNECTED, SessionEvent.SESSION_REESTABLISHED):
            for bookie_id in self._clients:
                self._look_soon(bookie_id)

    def _look_soon(self, bookie_id: str) -> None:
        if bookie_id in self._clients:
            # Also beside a look that is under way: that one may have read what was before.
            task = asyncio.get_running_loop().create_task(self._follow(bookie_id))
            self._looking[bookie_id] = task
            task.add_done_callback(lambda done: self._looked(bookie_id, done))

    def _looked(self, bookie_id: str, task: asyncio.Task[None]) -> None:
        if self._looking.get(bookie_id) is task:
            del self._looking[bookie_id]

    async def _follow(self, bookie_id: str) -> None:
        """Leave the address where the bookie was, if it is registered at another one."""
        try:
            address = await self._look_up(bookie_id)
        except (MetadataError, BookieUnavailableError) as error:
            _log.warning("bookie %s: its registration can't be read: %s", bookie_id, error)
            return
        client = self._clients.get(bookie_id)
        if address is not None and client is not None:
            self._known[bookie_id] = address
            client.leave_others(address)

    async def close(self) -> None:
        for watch in self._watches:
            watch.close()
        self._watches = []
        looking = list(self._looking.values())
        for task in looking:
            task.cancel()
        await asyncio.gather(*looking, return_exceptions=True)
        clients, self._clients = list(self._clients.values()), {}
        await asyncio.gather(*(client.close() for client in clients))

    async def _read_instance_id(self) -> str:
        if not self._instance_id:
            found = await self._store.get(_INSTANCE_ID_PATH)
            self._instance_id = "" if found is None else found.value.decode()
        return self._instance_id


def _address(info: ServiceInfo, instance_id: str) -> BookieAddress | None:
    """None: it isn't reached over the network, or isn't one of ours."""
    if info.address is None or info.rpc_address is None:
        return None
    return BookieAddress(*info.address, info.rpc_address, instance_id)
