"""What brokers of Apache Pulsar store of transactions: which are open, which were aborted. Pure.

Ours have none. Messages of an open or aborted transaction are in the topic among the others, and
ours would deliver them. docs/formats/pulsar-metadata.md.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf.message import DecodeError

from magnetar.broker.migration.errors import PulsarFormatError
from magnetar.broker.migration.system_events import opened
from magnetar.broker.transaction import transaction_records_pb2 as pb
from magnetar.broker.transaction.coordinator_records import entry_records
from magnetar.broker.transaction.transaction_id import TransactionId
from magnetar.managed_ledger.position import Position

SNAPSHOTS: Final = "__transaction_buffer_snapshot"
INDEXES: Final = "__transaction_buffer_snapshot_indexes"
COORDINATOR_LOG: Final = "__transaction_log_"
_COMMIT: Final = 21
_ABORT: Final = 22
_ENDED: Final = (pb.TransactionRecord.COMMITTED, pb.TransactionRecord.ABORTED)
_NAMES_MAX: Final = 5


def ids_text(ids: Iterable[TransactionId]) -> str:
    """Some of them."""
    names = [str(each) for each in sorted(ids)]
    rest = len(names) - _NAMES_MAX
    return ", ".join(names[:_NAMES_MAX]) + (f" and {rest} more" if rest > 0 else "")


def open_transactions(
    entries: Iterable[bytes], where: str
) -> dict[TransactionId, tuple[set[str], set[str]]]:
    """Transactions that a coordinator hasn't ended, with topics and subscriptions.

    Args:
        entries: of its log, from the position of its cursor on.

    Raises:
        PulsarFormatError: one isn't a record of a coordinator.
    """
    found = dict[TransactionId, tuple[set[str], set[str]]]()
    for entry in entries:
        try:
            records = entry_records(entry)
        except DecodeError as error:
            raise PulsarFormatError(f"{where}: not a record of transactions: {error}") from error
        for record in records:
            name = TransactionId(record.mostBits, record.leastBits)
            if record.operation == pb.TransactionRecord.UPDATE and record.newStatus in _ENDED:
                found.pop(name, None)
            elif record.operation == pb.TransactionRecord.NEW:
                found[name] = (set(), set())
            elif name in found:
                topics, subscriptions = found[name]
                topics.update(record.partitions)
                subscriptions.update(f"{x.topic} {x.subscription}" for x in record.subscriptions)
    return found


@dataclass(slots=True)
class TransactionBuffer:
    """Transactions of one topic, as its broker recovers them.

    Attributes:
        after: entries behind this position are still to be looked at.
        aborted: with the ledger of the record that ended each; None: it isn't told.
        sealed: ledgers of such records that end segments of aborted ones, which aren't read.
        open: those that have messages and no end.
    """

    after: Position
    aborted: dict[TransactionId, int | None] = field(default_factory=dict)
    sealed: list[int] = field(default_factory=list)
    open: set[TransactionId] = field(default_factory=set)

    def add(self, entry: bytes, ledger_id: int, where: str) -> None:
        """Look at the topic's next entry.

        Raises:
            PulsarFormatError: it isn't one.
        """
        metadata, _ = opened(entry, where)
        if not metadata.HasField("txnid_least_bits"):
            return
        name = TransactionId(metadata.txnid_most_bits, metadata.txnid_least_bits)
        if metadata.marker_type not in (_COMMIT, _ABORT):
            self.open.add(name)
            return
        self.open.discard(name)
        if metadata.marker_type == _ABORT:
            self.aborted[name] = ledger_id

    def findings(self, ledger_ids: Iterable[int]) -> list[str]:
        """What keeps the topic from being served without transactions.

        Args:
            ledger_ids: of the topic; messages are gone once the record of their end is.
        """
        listed = set(ledger_ids)
        aborted = [x for x, ledger in self.aborted.items() if ledger is None or ledger in listed]
        texts = list[str]()
        if self.open:
            texts.append(f"has messages of transactions {ids_text(self.open)}, which are open")
        if aborted:
            texts.append(f"has messages of transactions {ids_text(aborted)}, which were aborted")
        if listed.intersection(self.sealed):
            texts.append("has messages of aborted transactions")
        return texts


def buffer_of_snapshot(record: dict[str, Any]) -> TransactionBuffer:
    """From a record of `SNAPSHOTS`."""
    return TransactionBuffer(
        (record["maxReadPositionLedgerId"], record["maxReadPositionEntryId"]),
        {
            TransactionId(each["txnIdMostBits"], each["txnIdLeastBits"]): each["ledgerId"]
            for each in record["aborts"] or ()
        },
    )


def buffer_of_index(record: dict[str, Any]) -> TransactionBuffer:
    """From a record of `INDEXES`: the aborted ones of whole segments are in other entries."""
    snapshot = record["snapshot"]
    aborted = {TransactionId(x["mostSigBits"], x["leastSigBits"]) for x in snapshot["aborts"] or ()}
    return TransactionBuffer(
        (snapshot["maxReadPositionLedgerId"], snapshot["maxReadPositionEntryId"]),
        dict.fromkeys(aborted),
        [each["abortedMarkLedgerID"] for each in record["indexList"] or ()],
    )
