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
        is_apache: of Apache BookKeeper's are among them: our own login isn't known there.
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

    def __init__(self, store: MetadataStore, pool: BookiePool) -> None:
        """``pool`` follows the registrations."""
        self._store, self._pool = store, pool
        self._instance_id = ""

    async def find(self, bookie_ids: Collection[str], log_name: str) -> BookieAccess:
        pool = self._pool
        infos = [
            pool.infos[each]
            for each in bookie_ids
            if pool.is_registered(each) and each in pool.infos
        ]
        # Readers log in to all bookies that hold a ledger, or to none.
        is_apache = any(info.address is None and info.rpc_address is not None for info in infos)
        addresses = {}
        for info in infos:
            if info.rpc_address is not None:
                addresses[info.bookie_id] = info.rpc_address
        return BookieAccess(addresses, await self._read_instance_id(), is_apache=is_apache)

    async def _read_instance_id(self) -> str:
        if not self._instance_id:  # once there is one it never changes
            found = await self._store.get(INSTANCE_ID_PATH)
            self._instance_id = "" if found is None else found.value.decode()
        return self._instance_id
