"""Logs and cursors of Apache Pulsar's brokers to ours, and ours to theirs. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from pyroaring import BitMap

from magnetar.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.broker.migration import pulsar_metadata_pb2 as pb
from magnetar.broker.migration.pulsar_forms import properties_of, set_position
from magnetar.broker.migration.swap_report import Kind, SwapFinding
from magnetar.broker.protocol.topic_name import PENDING_ACK_SUFFIX
from magnetar.broker.transaction.topic_transactions import TRANSACTION_PROPERTIES
from magnetar.managed_ledger.cursor.cursor_format import encode_node_state
from magnetar.managed_ledger.cursor.cursor_image import CursorImage
from magnetar.managed_ledger.cursor.cursor_store import CursorNode
from magnetar.managed_ledger.ledger_rows import LedgerInfo, LedgerRows
from magnetar.managed_ledger.managed_ledger_info import ManagedLedgerInfo
from magnetar.managed_ledger.orphan_ledgers import COMPACTED_LEDGER

REPLICATOR: Final = "pulsar.repl."
_INTERNAL: Final = "#pulsar.internal."
_SYSTEM_TOPICS: Final = frozenset(
    {
        "__change_events",
        "__transaction_buffer_snapshot",
        "__transaction_buffer_snapshot_segments",
        "__transaction_buffer_snapshot_indexes",
    }
)
SYSTEM_NAMESPACE: Final = "pulsar/system"
_PARTITION: Final = "-partition-"

Ends = Mapping[int, LedgerMetadata | None]
"""What BookKeeper knows of ledgers; None: there is no such ledger."""


def is_left(namespace: str, local: str) -> bool:
    """Whether a topic is one of Pulsar's brokers themselves, which ours have no use for."""
    tenant, _, name = namespace.partition("/")
    if namespace == SYSTEM_NAMESPACE or (tenant == "pulsar" and ":" in name):
        return True
    base = local.partition(_PARTITION)[0]
    return base in _SYSTEM_TOPICS or base.endswith(PENDING_ACK_SUFFIX)


class ConvertedLog(NamedTuple):
    info: ManagedLedgerInfo
    entries: dict[int, int]
    """Number of entries of each listed ledger."""
    findings: list[SwapFinding]


def convert_log(name: str, node: pb.ManagedLedgerNode, ends: Ends, now_ms: int) -> ConvertedLog:
    """Our list of a log's ledgers.

    Pulsar writes the end of the newest ledger when the next one begins, so BookKeeper decides.

    Args:
        ends: of all ledgers that the node lists.
    """
    rows, entries = list[LedgerInfo](), dict[int, int]()
    offloaded, missing, copied = list[int](), list[int](), list[int]()
    for row in node.ledgers:
        end = ends[row.ledgerId]
        if row.offloadContext.bookkeeperDeleted:
            offloaded.append(row.ledgerId)
            continue
        if row.offloadContext.complete:
            copied.append(row.ledgerId)
        if end is None:
            missing.append(row.ledgerId)
        elif end.state is not LedgerState.CLOSED:
            rows.append(LedgerInfo(row.ledgerId))  # our brokers end it when they open the log
            entries[row.ledgerId] = row.entries
        else:
            closed_ms = row.timestamp or now_ms
            rows.append(LedgerInfo(row.ledgerId, end.last_entry + 1, end.length, closed_ms))
            entries[row.ledgerId] = end.last_entry + 1
    terminated = None
    if node.HasField("terminatedPosition"):
        terminated = (node.terminatedPosition.ledgerId, node.terminatedPosition.entryId)
    info = ManagedLedgerInfo(
        ledgers=LedgerRows(rows),
        properties=properties_of(node.properties),
        terminated=terminated,
    )
    texts = (
        (offloaded, "only in tiered storage, in Pulsar's form"),
        (missing, "listed, and BookKeeper has no such ledger"),
    )
    findings = [
        SwapFinding(Kind.LOST, name, f"ledgers {_some(ids)}: {text}") for ids, text in texts if ids
    ]
    if copied:
        text = f"ledgers {_some(copied)}: their copies in tiered storage, which ours never delete"
        findings.append(SwapFinding(Kind.LEFT, name, text))
    return ConvertedLog(info, entries, findings)


def _some(ids: Sequence[int]) -> str:
    shown = ", ".join(map(str, ids[:10]))
    return shown if len(ids) <= 10 else f"{shown} and {len(ids) - 10} more"


def cursor_findings(log: str, name: str, node: pb.ManagedCursorNode) -> list[SwapFinding] | None:
    """What a cursor has that ours can't; None: the cursor itself is left, which replicates."""
    if name.startswith(REPLICATOR):
        return None
    delayed = [each.name for each in node.cursorProperties if each.name.startswith(_INTERNAL)]
    if not delayed:
        return []
    text = f"{len(delayed)} ledgers with an index of delayed messages, which is made anew"
    return [SwapFinding(Kind.LEFT, f"{log}, subscription {name}", text)]


def compacted_ledger(image: CursorImage) -> int | None:
    """What the last compaction of a log has left, by the position of its cursor."""
    return (image.properties or {}).get(COMPACTED_LEDGER)


def without_property(image: CursorImage, name: str) -> CursorImage:
    """The same position, without one of its properties."""
    properties = {key: value for key, value in (image.properties or {}).items() if key != name}
    return replace(image, properties=properties)


def convert_cursor(node: pb.ManagedCursorNode, image: CursorImage) -> CursorNode:
    """Our node of a cursor, with position and acknowledgements in it."""
    properties = properties_of(node.cursorProperties)
    return CursorNode(
        image.mark_delete,
        properties=image.properties or {},
        cursor_properties={k: v for k, v in properties.items() if not k.startswith(_INTERNAL)},
        last_active_ms=node.lastActive,
        state=encode_node_state(image),
    )


def unacknowledged(entries: Mapping[int, int], image: CursorImage) -> int:
    """Entries of a log that a cursor has still to deliver, in whole or in part."""
    ledger, entry = image.mark_delete
    count = 0
    for ledger_id, total in entries.items():
        first = 0 if ledger_id > ledger else min(total, entry + 1) if ledger_id == ledger else total
        acked = image.acked.get(ledger_id, BitMap())
        count += total - first - len([each for each in acked if first <= each < total])
    return count


# --- the way back


def list_for_pulsar(before: pb.ManagedLedgerNode, info: ManagedLedgerInfo) -> pb.ManagedLedgerNode:
    """Pulsar's node of a log as our list is now.

    Rows that Pulsar had keep what we don't know, such as where they were offloaded to. Those that
    are in tiered storage alone were never in our list: they stay as long as it has one behind them.
    """
    old = {row.ledgerId: row for row in before.ledgers}
    node = pb.ManagedLedgerNode()
    node.CopyFrom(before)
    del node.ledgers[:]
    if any(row.ledger_id in old for row in info.ledgers):
        for row in old.values():
            if row.offloadContext.bookkeeperDeleted:
                node.ledgers.add().CopyFrom(row)
    for info_row in info.ledgers:
        row = node.ledgers.add()
        if (known := old.get(info_row.ledger_id)) is not None:
            row.CopyFrom(known)
        row.ledgerId = info_row.ledger_id
        if info_row.closed_ms:
            row.entries, row.size = info_row.entries, info_row.size
            row.timestamp = info_row.closed_ms
        else:
            row.timestamp = 0
    rows = sorted(node.ledgers, key=lambda each: each.ledgerId)
    del node.ledgers[:]
    node.ledgers.extend(rows)
    node.ClearField("terminatedPosition")
    if info.terminated is not None:
        node.terminatedPosition.ledgerId, node.terminatedPosition.entryId = info.terminated
    del node.properties[:]
    for key, value in info.properties.items():
        if key not in TRANSACTION_PROPERTIES:
            node.properties.add(key=key, value=value)
    return node


def cursor_for_pulsar(
    before: pb.ManagedCursorNode | None, ours: CursorNode, image: CursorImage
) -> pb.ManagedCursorNode:
    """Pulsar's node of a cursor as ours is now; ``before``: as Pulsar left it."""
    node = pb.ManagedCursorNode()
    internal = list[pb.StringProperty]()
    if before is not None:
        node.CopyFrom(before)
        internal = [x for x in before.cursorProperties if x.name.startswith(_INTERNAL)]
    set_position(node, image)
    node.lastActive = ours.last_active_ms
    del node.cursorProperties[:]
    node.cursorProperties.extend(internal)
    for name, value in ours.cursor_properties.items():
        if name != COMPACTED_LEDGER:  # ours alone, for the search of leaked ledgers
            node.cursorProperties.add(name=name, value=value)
    return node
