"""Broker entry metadata of one topic: what ``brokerEntryMetadataInterceptors`` ask for.

The index is that of the last message of an entry; the first message of a topic has 0. Source:
docs/formats/topic-entry.md. An append that failed may leave a gap.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from magnetar.broker.protocol.entry_header import (
    HEAD_BYTES,
    later_header,
    message_counts,
    parse_header,
)
from magnetar.broker.protocol.pulsar_api_pb2 import BrokerEntryMetadata
from magnetar.broker.protocol.stored_entries import (
    decode_broker_metadata,
    encode_broker_metadata,
)
from magnetar.broker.pulsar_settings import BROKER_TIMESTAMP, MESSAGE_INDEX
from magnetar.managed_ledger.managed_ledger import ManagedLedger

INDEX_PROPERTY: Final = "index"
"""As in Pulsar: of the log, for when no entry is left that has an index."""


class EntryMetadataWriter:
    """Adds metadata to the heads of a topic's entries.

    Attributes:
        index: of the last message that was published; -1: there was none.
    """

    __slots__ = ("_clock", "_has_time", "index")

    def __init__(self, interceptors: Iterable[str], clock: Callable[[], int]) -> None:
        names = frozenset(interceptors)
        self._clock, self._has_time = clock, BROKER_TIMESTAMP in names
        self.index: int | None = -1 if MESSAGE_INDEX in names else None

    async def restore(self, log: ManagedLedger) -> None:
        """Go on behind what is stored; from now on the log keeps the index.

        Raises:
            LedgerError: the last entry can't be read now.
        """
        if self.index is None:
            return
        self.index = int(log.properties.get(INDEX_PROPERTY, "-1"))
        position = log.last_confirmed
        batch = await log.read(position, 1, 1) if log.offsets.is_valid(position) else None
        if batch is not None and (batch.ledger_id, batch.first) == position:
            self.index = max(self.index, index_of(batch.heads[0]))
        log.own_properties = self._properties

    def _properties(self) -> Mapping[str, str]:
        return {INDEX_PROPERTY: str(self.index)}

    def add_to(self, heads: list[bytes]) -> list[bytes]:
        """Heads with metadata behind them, of entries that are published now, in order."""
        added = []
        now_ms = self._clock()
        for head, count in zip(heads, message_counts(heads), strict=True):
            metadata = decode_broker_metadata(head) or BrokerEntryMetadata()
            fixed = head[:HEAD_BYTES]
            if self._has_time and not metadata.broker_timestamp:
                metadata.broker_timestamp = now_ms
                ahead_ms = now_ms - parse_header(fixed).publish_time_ms
                fixed = later_header(fixed, ahead_ms, with_delivery=False)
            if self.index is not None:
                self.index += count
                metadata.index = self.index
            added.append(fixed + encode_broker_metadata(metadata))
        return added


def index_of(head: bytes) -> int:
    """Index of the last message of an entry; -1: it has none."""
    found = decode_broker_metadata(head)
    return found.index if found is not None and found.HasField("index") else -1


def entry_metadata_writer(
    interceptors: str, clock: Callable[[], int]
) -> EntryMetadataWriter | None:
    """``interceptors``: as in the setting; None: there are none."""
    names = [name.strip() for name in interceptors.split(",") if name.strip()]
    return EntryMetadataWriter(names, clock) if names else None
