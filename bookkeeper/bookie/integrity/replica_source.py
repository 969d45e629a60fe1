"""Where a bookie gets what it lost: the other bookies of a ledger, and the metadata.

A narrow interface, so that a bookie needs no ledger client: the process that runs it passes one,
or none (standalone: there is no other copy).
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from magnetar.bookkeeper.bookie_protocol.digests import CRC32C, DigestOf, to_kept
from magnetar.bookkeeper.client import quorum
from magnetar.bookkeeper.client.ledger_store import LedgerStore
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.bookkeeper.replication.replica_reader import ReplicaStatus, read_replica

_READ_BYTES: Final = 4 * 1024 * 1024
_READ_S: Final = 30.0


@dataclass(slots=True)
class FetchedEntries:
    """Sound packets of consecutive entries.

    Attributes:
        absent: none, and each of the other replicas has said that it doesn't hold the first one.
        reason: why there are none.
    """

    packets: list[bytes] = field(default_factory=list)
    absent: bool = False
    reason: str = ""


class ReplicaSource(Protocol):
    """See the module's text."""

    def ledger_ids(self) -> AsyncIterator[Sequence[int]]:
        """All ledgers, ascending, in pieces. Raises: MetadataError."""
        ...

    async def metadata(self, ledger_id: int) -> LedgerMetadata | None:
        """None: there is no such ledger. Raises: MetadataError, LedgerMetadataError."""
        ...

    async def fetch(self, metadata: LedgerMetadata, first: int, end: int) -> FetchedEntries:
        """Read entries from ``first`` on, up to ``end`` (not included) at most; never raises."""
        ...

    async def recover(self, metadata: LedgerMetadata) -> LedgerMetadata:
        """Fence and close the ledger. Raises LedgerError, MetadataError: try again later."""
        ...

    async def repairs(self) -> Mapping[int, bytes]:
        """Return the ledgers under repair, each with an id of its repair. Raises MetadataError.

        A repair that has ended is left out only once its changes of metadata can be read.
        """
        ...


class RecoverLedger(Protocol):
    """``client.async_ledger_recovery.recover_ledger`` with all but the ledger given."""

    async def __call__(self, ledger_id: int) -> LedgerMetadata: ...


@dataclass(eq=False)
class EnsembleReplicaSource:
    """``ReplicaSource`` by way of a pool of bookies.

    Args:
        repairs: ``UnderReplicationStore.repairs``, in the session of ``ledgers``.
        digest_of: which digest a ledger's packets have at this bookie; None: all have CRC32C.
    """

    _bookie_id: str
    _ledgers: LedgerStore
    _pool: BookiePool
    _recover: RecoverLedger
    _repairs: Callable[[], Awaitable[Mapping[int, bytes]]]
    _digest_of: DigestOf | None = None

    async def ledger_ids(self) -> AsyncIterator[Sequence[int]]:
        async for found in self._ledgers.ranges():
            yield found.ledger_ids

    async def metadata(self, ledger_id: int) -> LedgerMetadata | None:
        found = await self._ledgers.read(ledger_id)
        return None if found is None else found.metadata

    async def recover(self, metadata: LedgerMetadata) -> LedgerMetadata:
        return await self._recover(metadata.ledger_id)

    async def repairs(self) -> Mapping[int, bytes]:
        return await self._repairs()

    async def fetch(self, metadata: LedgerMetadata, first: int, end: int) -> FetchedEntries:
        segment = metadata.segment_of(first)
        segment_end = metadata.segment_end(first)
        if segment_end is not None:
            end = min(end, segment_end)
        slots = quorum.write_set(first, metadata.ensemble_size, metadata.write_quorum)
        others = [segment.bookies[slot] for slot in slots]
        others = [bookie_id for bookie_id in others if bookie_id != self._bookie_id]
        if not others:
            return FetchedEntries(absent=True, reason="there is no other copy")
        reasons: list[str] = []
        denials = 0
        for bookie_id in others:
            found = await read_replica(
                *(self._pool, bookie_id, metadata.ledger_id, first, end - first),
                *(_READ_BYTES, _READ_S),
                creator=metadata.creator_token,
            )
            if found.packets:
                return FetchedEntries(self._as_kept(metadata.ledger_id, found.packets))
            denials += found.answer is ReplicaStatus.ABSENT
            reasons.append(f"{bookie_id}: {found}")
        return FetchedEntries(absent=denials == len(others), reason=", ".join(reasons))

    def _as_kept(self, ledger_id: int, packets: list[bytes]) -> list[bytes]:
        digest = CRC32C if self._digest_of is None else self._digest_of(ledger_id)
        if digest is CRC32C:
            return packets
        return [to_kept(digest, packet, b"") for packet in packets]
