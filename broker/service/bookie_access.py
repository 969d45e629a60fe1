"""Where bookies are for readers in other processes, which read entries past the broker."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from magnetar.bookkeeper.bookie.cookie import INSTANCE_ID_PATH
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.metadata.store import MetadataStore


@dataclass(frozen=True, slots=True)
class BookieAccess:
    """
    Attributes:
        addresses: host and port by bookie id; those that can't be reached now are left out.
        instance_id: of the cluster of bookies; "": unknown.
        token: what they want to be shown; "": nothing that the broker could give.
        is_apache: they speak Apache BookKeeper's protocol.
    """

    addresses: Mapping[str, tuple[str, int]]
    instance_id: str = ""
    token: str = field(default="", repr=False)
    is_apache: bool = False


class BookieAddressResolver(Protocol):
    """Finds the addresses of bookies."""

    async def find(self, bookie_ids: Collection[str], log_name: str) -> BookieAccess:
        """
        Args:
            bookie_ids: the only ones that the answer may name.
            log_name: of the managed ledger whose entries are to be read.
        Raises:
            ServiceNotReadyError: not now. MetadataError: the store can't tell.
        """
        ...


class RegisteredBookies:
    """Bookies that are processes of their own: what they have registered. Credentials are between
    them and the reader.
    """

    def __init__(self, store: MetadataStore, pool: BookiePool, *, is_apache: bool) -> None:
        """``pool`` follows the registrations."""
        self._store, self._is_apache = store, is_apache
        self._pool = pool
        self._instance_id = ""

    async def find(self, bookie_ids: Collection[str], log_name: str) -> BookieAccess:
        pool, addresses = self._pool, {}
        for bookie_id in bookie_ids:
            info = pool.infos.get(bookie_id) if pool.is_registered(bookie_id) else None
            if info is not None and info.address is not None:
                addresses[bookie_id] = info.address
        return BookieAccess(addresses, await self._read_instance_id(), is_apache=self._is_apache)

    async def _read_instance_id(self) -> str:
        if not self._instance_id:  # once there is one it never changes
            found = await self._store.get(INSTANCE_ID_PATH)
            self._instance_id = "" if found is None else found.value.decode()
        return self._instance_id
