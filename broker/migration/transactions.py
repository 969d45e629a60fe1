"""Transactions as brokers of Apache Pulsar and ours store them, one form to the other. Pure.

Every transaction has ended when a swap is made. What is left of them: sequences that were given
out, acknowledgements that were committed and that a cursor may lack, and the aborted transactions
whose messages are in a topic's log. docs/formats/pulsar-metadata.md.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from google.protobuf.message import DecodeError

from magnetar.broker.migration.errors import PulsarFormatError
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.transaction.buffer import TopicTransactionBuffer
from magnetar.broker.transaction.coordinator import Coordinator, TransactionDescription
from magnetar.broker.transaction.coordinator_records import acknowledgement_records
from magnetar.broker.transaction.markers import snapshot_marker
from magnetar.broker.transaction.pending_acks import AcknowledgeCommitted, PendingAcks
from magnetar.broker.transaction.transaction_id import TransactionId
from magnetar.broker.transaction.transaction_records_pb2 import TransactionSnapshot
from magnetar.managed_ledger.cursor.ack_state import AckState, mask_to_words
from magnetar.managed_ledger.cursor.cursor_image import CursorImage
from magnetar.managed_ledger.entry_batch import EntryBatch
from magnetar.managed_ledger.errors import InvalidPositionError
from magnetar.managed_ledger.managed_ledger_info import LedgerOffsets
from magnetar.managed_ledger.position import EARLIEST, Position

SNAPSHOTS: Final = "__transaction_buffer_snapshot"
SEGMENTS: Final = "__transaction_buffer_snapshot_segments"
INDEXES: Final = "__transaction_buffer_snapshot_indexes"
COORDINATOR_LOG: Final = "__transaction_log_"
Document = dict[str, Any]

SNAPSHOT_SCHEMA: Final = (
    b'{"type":"record","name":"TransactionBufferSnapshot",'
    b'"namespace":"org.apache.pulsar.broker.transaction.buffer.metadata","fields":['
    b'{"name":"aborts","type":["null",{"type":"array","items":'
    b'{"type":"record","name":"AbortTxnMetadata","fields":['
    b'{"name":"entryId","type":"long"},{"name":"ledgerId","type":"long"},'
    b'{"name":"txnIdLeastBits","type":"long"},{"name":"txnIdMostBits","type":"long"}]},'
    b'"java-class":"java.util.List"}],"default":null},'
    b'{"name":"maxReadPositionEntryId","type":"long"},'
    b'{"name":"maxReadPositionLedgerId","type":"long"},'
    b'{"name":"topicName","type":["null","string"],"default":null}]}'
)
"""Of `SNAPSHOTS`, as Pulsar 4.2.4 registers it in a namespace that has none."""

SCHEMA_PROPERTIES: Final = {"__jsr310ConversionEnabled": "false", "__alwaysAllowNull": "true"}
"""Of the same."""


# --- coordinators


def replayed(number: int, entries: Iterable[bytes], where: str, given_out: int = -1) -> Coordinator:
    """A coordinator as its log tells of it.

    Args:
        given_out: sequences up to this one were.

    Raises:
        PulsarFormatError: an entry isn't one of such a log.
    """
    core = Coordinator(number)
    core.begin_behind(given_out)
    for entry_id, entry in enumerate(entries):
        try:
            core.replay(entry, (0, entry_id))
        except DecodeError as error:
            raise PulsarFormatError(f"{where}: not a record of transactions: {error}") from error
    return core


def unended(core: Coordinator) -> list[TransactionDescription]:
    """Transactions that a swap has to wait for, the first one first."""
    found = map(core.describe, sorted(core.sequences()))
    return [each for each in found if each is not None]


def open_text(found: TransactionDescription, now_ms: int) -> str:
    """Why a swap has to wait."""
    names = [*found.partitions, *(f"{topic} {name}" for topic, name in found.subscriptions)]
    age_s = max(0, now_ms - found.start_ms) // 1000
    what = f"transaction {found.transaction} is {found.status}, it began {age_s} s ago"
    return f"{what}: {', '.join(sorted(names)) or 'it is empty'}"


# --- acknowledgements


def with_committed(
    image: CursorImage, counts: Iterable[tuple[int, int]], entries: Iterable[bytes], where: str
) -> CursorImage:
    """A cursor's position with what transactions have acknowledged and committed.

    Args:
        counts: entries of each ledger of the topic.
        entries: of the log of pending acknowledgements, from its cursor on.

    Raises:
        PulsarFormatError: an entry isn't one of such a log.
    """
    offsets = LedgerOffsets(counts)
    state = AckState(offsets, EARLIEST)
    state.adopt(image)
    acks = PendingAcks(state, state.mark_delete)
    try:
        for entry in entries:
            for record in acknowledgement_records(entry):
                acks.replay(record, EARLIEST)
                while acks.is_applying:
                    acks.apply_more()
                for effect in acks.take_effects():
                    if isinstance(effect, AcknowledgeCommitted):
                        _acknowledge(state, effect, offsets.last_confirmed)
    except (DecodeError, InvalidPositionError) as error:
        raise PulsarFormatError(f"{where}: not a record of acknowledgements: {error}") from error
    return state.image()


def _acknowledge(state: AckState, committed: AcknowledgeCommitted, end: Position) -> None:
    for ack in committed.individual:
        state.ack_batch(ack.position, mask_to_words(ack.left))
    if (last := committed.cumulative) is None:
        return
    if last.position > end:  # of a ledger that was lost
        state.ack_cumulative(end)
    else:
        state.ack_cumulative_batch(last.position, mask_to_words(last.left))


# --- topics


def snapshot_of(record: Document) -> TransactionSnapshot:
    """Of a record of `SNAPSHOTS`."""
    found = _snapshot_upto(record)
    for each in sorted(record["aborts"] or (), key=lambda each: each["ledgerId"]):
        name = TransactionId(each["txnIdMostBits"], each["txnIdLeastBits"])
        _add_aborted(found, name, each["ledgerId"])
    return found


def snapshot_of_index(
    record: Document, segments: Mapping[int, Document], last_ledger_id: int
) -> TransactionSnapshot:
    """Of a record of `INDEXES`.

    Args:
        segments: records of `SEGMENTS` by their number.
        last_ledger_id: of the topic: of what isn't in a segment no ledger is told, and with this
            one it is kept too long rather than not long enough.

    Raises:
        KeyError: a segment is missing.
    """
    found = _snapshot_upto(record["snapshot"])
    for each in sorted(record["indexList"] or (), key=lambda each: each["abortedMarkLedgerID"]):
        for name in _names(segments[each["sequenceID"]]):
            _add_aborted(found, name, each["abortedMarkLedgerID"])
    for name in _names(record["snapshot"]):
        _add_aborted(found, name, last_ledger_id)
    return found


def _names(record: Document) -> list[TransactionId]:
    return [TransactionId(x["mostSigBits"], x["leastSigBits"]) for x in record["aborts"] or ()]


def _snapshot_upto(record: Document) -> TransactionSnapshot:
    return TransactionSnapshot(
        uptoLedger=record["maxReadPositionLedgerId"], uptoEntry=record["maxReadPositionEntryId"]
    )


def _add_aborted(snapshot: TransactionSnapshot, name: TransactionId, ledger_id: int) -> None:
    snapshot.abortedMost.append(name.most)
    snapshot.abortedLeast.append(name.least)
    snapshot.abortedLedger.append(ledger_id)


def abort_late(buffer: TopicTransactionBuffer) -> list[TransactionId]:
    """Transactions whose messages came after their end, which no coordinator will end any more."""
    late = list(buffer.open)
    for each in late:
        buffer.on_stored_end(each, commit=False)
    return late


def snapshot_entries(buffer: TopicTransactionBuffer, ledger_id: int, now_ms: int) -> list[bytes]:
    """Entries of a ledger behind the topic's others that tell our brokers what was aborted."""
    entries = list[bytes]()
    while not entries or buffer.has_news:
        head, body = snapshot_marker(buffer.due() or buffer.snapshot(), now_ms)
        buffer.on_entries(EntryBatch(ledger_id, len(entries), [head], [body]))
        entries.append(body)
    return entries


class TopicSnapshots:
    """What brokers of Pulsar shall find of the topics of a namespace, and what is there.

    Args:
        snapshots: records of `SNAPSHOTS` by topic.
        indexes: those of `INDEXES`.
    """

    def __init__(self, snapshots: Mapping[str, Document], indexes: Mapping[str, Document]) -> None:
        self._snapshots, self._indexes = snapshots, indexes
        self._wanted: dict[str, Document | None] = {}

    def forget(self, topic: TopicName) -> None:
        """What is there is of another topic."""
        if str(topic) in self._snapshots or str(topic) in self._indexes:
            self._wanted[str(topic)] = None

    def put(self, topic: TopicName, buffer: TopicTransactionBuffer, last: Position) -> None:
        """A topic is as its buffer says.

        Args:
            last: entry of its log.
        """
        name = str(topic)
        if buffer.aborted_total or name in self._snapshots or name in self._indexes:
            self._wanted[name] = _snapshot_record(name, buffer, last)

    def changes(self) -> list[tuple[str, dict[str, Document | None]]]:
        """New records by system topic and key.

        Without an index Pulsar's brokers read the snapshot, also if they write segments.
        """
        records = {
            name: record
            for name, record in self._wanted.items()
            if record != self._snapshots.get(name)
        }
        gone = dict.fromkeys(name for name in self._wanted if name in self._indexes)
        return [(SNAPSHOTS, records), (INDEXES, {**gone})]


def _snapshot_record(topic: str, buffer: TopicTransactionBuffer, last: Position) -> Document:
    """Pulsar's brokers look at nothing but the ledgers of the markers."""
    return {
        "topicName": topic,
        "maxReadPositionLedgerId": last[0],
        "maxReadPositionEntryId": last[1],
        "aborts": [
            {
                "txnIdMostBits": name.most,
                "txnIdLeastBits": name.least,
                "ledgerId": ledger_id,
                "entryId": 0,
            }
            for name, ledger_id in buffer.aborted.items()
        ],
    }
