"""From Apache Pulsar's brokers to ours: what they stored, written again in our forms.

No ledger is copied: our lists name those that theirs name. Every step may be repeated, and nothing
of Pulsar's is changed, apart from the node that keeps its brokers from starting. A note of the
last namespace that is done lets a repeated command go on from there.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple

import orjson

from magnetar.broker.migration import marker
from magnetar.broker.migration.conversion import (
    REPLICATOR,
    compacted_ledger,
    convert_cursor,
    convert_log,
    cursor_findings,
    is_left,
    unacknowledged,
    without_property,
)
from magnetar.broker.migration.doomed_ledgers import (
    begin_making,
    delete_doomed,
    delete_unnamed,
    end_all_making,
    nothing_named,
)
from magnetar.broker.migration.errors import MigrationError
from magnetar.broker.migration.ledger_access import MARK
from magnetar.broker.migration.marker import Marker, Serving
from magnetar.broker.migration.node_writes import put_node
from magnetar.broker.migration.pulsar_cluster import (
    PulsarCluster,
    PulsarCursor,
    PulsarLog,
    gather,
    topic_of_log,
)
from magnetar.broker.migration.swap_report import Kind, SwapFinding, SwapReport
from magnetar.broker.migration.transactions import abort_late, open_text, snapshot_entries, unended
from magnetar.broker.resources.resources import MANAGED_LEDGERS, topic_policies_path
from magnetar.broker.schema.history import SchemaHistory
from magnetar.broker.schema.registry import SCHEMAS
from magnetar.broker.transaction.async_coordinator import MAX_SEQUENCE_PROPERTY
from magnetar.broker.transaction.buffer import TopicTransactionBuffer
from magnetar.broker.transaction.buffer_recovery import TRANSACTIONS_PROPERTY
from magnetar.broker.transaction.stored_ends import with_end
from magnetar.broker.transaction.transaction_id import TransactionId
from magnetar.broker.transaction.transaction_records_pb2 import TransactionSnapshot
from magnetar.managed_ledger.cursor.cursor_store import (
    STATE_BYTES_MAX,
    CursorNode,
    encode_node,
)
from magnetar.managed_ledger.ledger_info_chunks import LedgerInfoChunks
from magnetar.managed_ledger.managed_ledger_info import ManagedLedgerInfo
from magnetar.managed_ledger.orphan_ledgers import COMPACTED_LEDGER, COMPACTION_CURSOR
from magnetar.managed_ledger.position import EARLIEST, format_position
from magnetar.managed_ledger.stored_info import read_stored
from magnetar.metadata.errors import NotFoundError
from magnetar.metadata.paths import decode_name, encode_name, join
from magnetar.metadata.store import CREATE_ONLY, MetadataStore

DOCUMENTS: Final = (
    "/admin/clusters",
    "/admin/policies",
    "/admin/local-policies",
    "/admin/partitioned-topics",
    "/loadbalance/resource-quota",
)
"""Subtrees with the same values in both kinds of cluster. Both have racks in the same node."""
NAMES: Final = "/counters/producer-name"
_PARTITIONED: Final = "/admin/partitioned-topics/"
ASSIGNED_COORDINATORS: Final = (
    _PARTITIONED + "pulsar/system/persistent/transaction_coordinator_assign"
)
"""Says how many coordinators of transactions there are."""
MANAGED_LEDGER: Final = {"application": b"pulsar", "component": b"managed-ledger"}
_CONFIGURATION: Final = "/admin/configuration"
_RESOURCE_GROUPS: Final = "/admin/resourcegroups"
_WRITER: Final = "migrate"


class _Aborted(NamedTuple):
    """Transactions of a topic, none of which is open.

    Attributes:
        late: those that no marker in the log aborts.
    """

    buffer: TopicTransactionBuffer
    late: list[TransactionId]


class Forward:
    """One run.

    Args:
        ours: the store of our brokers, which is a chroot of its own.
        now_ms: wall clock, for ledgers whose end Pulsar hasn't dated.
        write: False: only tell what there is.
        accept_loss: write although something would be lost.
    """

    def __init__(
        self,
        pulsar: PulsarCluster,
        ours: MetadataStore,
        now_ms: Callable[[], int],
        *,
        write: bool,
        accept_loss: bool = False,
    ) -> None:
        self._pulsar, self._ours, self._now_ms = pulsar, ours, now_ms
        self._write, self._accept_loss = write, accept_loss
        self._has_password = False
        self._open = set[TransactionId]()
        self.report = SwapReport()

    async def begin(self) -> Marker:
        """Makes sure that no broker of either kind runs, and that nothing is lost; where to go on.

        Raises:
            MigrationError: one does, or the cluster is ours already. SwapRefusedError.
        """
        before = await marker.read_marker(self._ours)
        if before is not None and before.serving in (Serving.MAGNETAR, Serving.TO_PULSAR):
            raise MigrationError("this cluster is Magnetar's, or on its way back: see --back")
        is_new = before is None or before.serving is Serving.PULSAR
        begun = Marker(Serving.TO_MAGNETAR) if before is None or is_new else before
        try:
            await marker.refuse_pulsar(self._pulsar.store)
            await marker.check_none_live(self._pulsar.store, "brokers of Pulsar")
            await marker.write_marker(self._ours, begun)  # from here on ours don't start
            await marker.check_none_live(self._ours, "brokers of Magnetar")
            await self._check_nothing_is_lost()
        except MigrationError:
            if is_new:
                await marker.admit_pulsar(self._pulsar.store)
                await self._restore(before)
            raise
        return begun

    async def _check_nothing_is_lost(self) -> None:
        # Only now: while a broker may write, ledgers that are open can't be read to their ends.
        looked = Forward(self._pulsar, self._ours, self._now_ms, write=False)
        (await looked.run()).refuse(accept_loss=self._accept_loss)

    async def _restore(self, before: Marker | None) -> None:
        if before is not None:
            await marker.write_marker(self._ours, before)
        else:
            with suppress(NotFoundError):
                await self._ours.delete(marker.PATH)

    async def run(self) -> SwapReport:
        """All steps; with ``write`` our brokers may serve afterwards.

        Raises:
            MigrationError: what was read back isn't what was written. Give the command again.
            SwapRefusedError: see there.
        """
        done = ""
        if self._write:
            begun = await self.begin()
            done = begun.done
            named_at = self._named_at if done else nothing_named
            await delete_unnamed(self._ours, self._pulsar.ledgers, named_at)
            if not done:
                await delete_doomed(self._ours, self._pulsar.ledgers)
                await self._clear()
        await self._documents()
        await self._coordinators()
        for namespace in await self._pulsar.namespaces():
            await self._namespace(namespace, is_done=namespace <= done)
            if self._write and namespace > done:
                await marker.write_marker(self._ours, Marker(Serving.TO_MAGNETAR, namespace))
        if self._has_password:
            text = "Magnetar's brokers need managedLedgerPassword of Pulsar's"
            self._find(Kind.NOTE, "ledgers with a password", text)
        if self._write:
            if self.report.mismatches:
                raise MigrationError("; ".join(self.report.mismatches[:5]))
            await self._producer_names()
            await end_all_making(self._ours)
            await marker.write_marker(self._ours, Marker(Serving.MAGNETAR))
        return self.report

    async def _clear(self) -> None:
        """What an earlier swap has left: Pulsar's brokers have gone on since."""
        for name in await self._ours.children("/"):
            if join("/", name) != marker.PATH:
                await self._ours.delete_recursive(join("/", name))

    async def _documents(self) -> None:
        for root in DOCUMENTS:
            await self._copy(root)
        found = await self._pulsar.store.get(_CONFIGURATION)
        if found is not None and found.value not in (b"", b"{}"):
            self._find(Kind.LEFT, "dynamic configuration", found.value.decode())
        groups = await self._pulsar.store.children(_RESOURCE_GROUPS)
        if groups:
            self._find(Kind.LEFT, "resource groups", ", ".join(map(decode_name, sorted(groups))))

    async def _copy(self, path: str) -> None:
        found = await self._pulsar.store.get(path)
        if found is None or is_left_document(path):
            return
        if found.value:
            self.report.counts["documents"] += 1
            self._look_at(path, found.value)
            if self._write:
                await put_node(self._ours, path, found.value)
        names = await self._pulsar.store.children(path)
        await gather(self._copy(join(path, name)) for name in names)

    def _look_at(self, path: str, value: bytes) -> None:
        if not path.startswith("/admin/policies/"):
            return
        document = orjson.loads(value)
        clusters = document.get("replication_clusters") or []
        if len(clusters) > 1:
            self._find(Kind.LEFT, path, f"replication to {', '.join(clusters)}")

    async def _namespace(self, namespace: str, *, is_done: bool) -> None:
        """Args:
        is_done: an earlier run has written it: it is only looked at.
        """
        snapshots = await self._pulsar.snapshots(namespace)
        async for logs in self._pulsar.logs(namespace):
            await gather(self._log(log, snapshots, is_done=is_done) for log in logs)
            self._pulsar.advance(len(logs))
        async for schema in self._pulsar.schemas(namespace):
            if schema.lost:
                text = f"versions {', '.join(map(str, schema.lost))}: their ledgers are gone"
                self._find(Kind.LOST, f"schema of {schema.name}", text)
            if schema.versions:
                self.report.counts["versions of schemas"] += len(schema.versions)
                if self._write and not is_done:
                    value = SchemaHistory(tuple(schema.versions)).encode()
                    await put_node(self._ours, f"{SCHEMAS}/{schema.name}", value)
        await self._policies(namespace, is_done=is_done)

    async def _log(
        self, log: PulsarLog, snapshots: Mapping[str, TransactionSnapshot], *, is_done: bool
    ) -> None:
        converted = convert_log(log.name, log.node, log.ends, self._now_ms())
        self._has_password |= any(end is not None and end.password for end in log.ends.values())
        self.report.counts["topics"] += 1
        self.report.counts["ledgers"] += len(converted.info.ledgers)
        self.report.counts["messages or batches"] += sum(converted.entries.values())
        self.report.add(converted.findings)
        cursors: dict[str, CursorNode] = {}
        for name, cursor in log.cursors.items():
            node = await self._cursor(log, name, cursor)
            if node is not None:
                cursors[name] = node
                left = unacknowledged(converted.entries, cursor.image)
                self.report.counts["of them unacknowledged by a subscription"] += left
        snapshot = snapshots.get(str(topic_of_log(log.name)))
        aborted = None if snapshot is None else await self._buffer(log, snapshot)
        if not self._write:
            return
        if not is_done:
            info = converted.info
            if aborted is not None:
                info = await self._with_aborted(log, aborted, info)
            await self._put_list(log.own_name, info)
            path = f"{MANAGED_LEDGERS}/{log.own_name}"
            await gather(
                put_node(self._ours, join(path, encode_name(name)), encode_node(node, _WRITER))
                for name, node in cursors.items()
            )
        await self._check(log, converted.entries, cursors)

    async def _cursor(self, log: PulsarLog, name: str, cursor: PulsarCursor) -> CursorNode | None:
        findings = cursor_findings(log.name, name, cursor.node)
        if findings is None:
            self._find(Kind.LEFT, log.name, f"replication to {name.removeprefix(REPLICATOR)}")
            return None
        self.report.add(findings)
        subject = f"{log.name}, subscription {name}"
        if cursor.has_lost_ledger:
            text = f"cursor ledger {cursor.node.cursorsLedgerId} is gone: its older position counts"
            self._find(Kind.NOTE, subject, text)
        image = cursor.image
        if name == COMPACTION_CURSOR and (ledger_id := compacted_ledger(image)) is not None:
            if await self._pulsar.ledgers.metadata(ledger_id) is None:
                text = f"compacted ledger {ledger_id} is gone: readers get what the topic has"
                self._find(Kind.LOST, log.name, text)
                image = without_property(image, COMPACTED_LEDGER)
            else:
                self.report.counts["compacted ledgers"] += 1
        node = convert_cursor(cursor.node, image)
        if len(node.state) > STATE_BYTES_MAX:
            text = f"acknowledgements of {len(node.state)} bytes, more than a node holds"
            self._find(Kind.LOST, subject, f"{text}: those beyond the position are delivered again")
            node = replace(node, state=b"")
        self.report.counts["subscriptions"] += 1
        return node

    async def _put_list(self, name: str, info: ManagedLedgerInfo) -> None:
        path = f"{MANAGED_LEDGERS}/{name}"
        found = await self._ours.get(path)
        version = CREATE_ONLY if found is None else found.stat.version
        chunks = LedgerInfoChunks(self._ours, path, _WRITER, lambda: True)
        _, value = await chunks.write(info, version)
        await self._ours.put(path, value, version)

    async def _check(
        self, log: PulsarLog, entries: dict[int, int], cursors: dict[str, CursorNode]
    ) -> None:
        """What our brokers will find, against what Pulsar's left."""
        stored = await read_stored(self._ours, log.own_name)
        if stored is None:
            self.report.mismatches.append(f"{log.name} isn't there")
            return
        counts = {row.ledger_id: row.entries for row in stored.info.ledgers if row.closed_ms}
        theirs = {row.ledgerId: end for row in log.node.ledgers if (end := log.ends[row.ledgerId])}
        for ledger_id, count in counts.items():
            if ledger_id in theirs and count != theirs[ledger_id].last_entry + 1:
                self.report.mismatches.append(f"{log.name}: {count} entries in ledger {ledger_id}")
        if stored.cursors.keys() != cursors.keys():
            self.report.mismatches.append(f"{log.name}: subscriptions {sorted(stored.cursors)}")
            return
        for name, cursor in stored.cursors.items():
            where = f"{log.name}, subscription {name}"
            found = cursor.node.image(where)
            wanted = log.cursors[name].image
            left = unacknowledged(entries, found)
            if not cursors[name].state and wanted.acked:
                continue  # was told as a loss
            if found.mark_delete != wanted.mark_delete or left != unacknowledged(entries, wanted):
                self.report.mismatches.append(f"{where}: {left} unacknowledged")

    async def _policies(self, namespace: str, *, is_done: bool) -> None:
        events = await self._pulsar.policy_events(namespace)
        documents: dict[str, dict[str, Any]] = {}
        for event in events.values():
            if event.unknown:
                self._find(Kind.LEFT, f"policies of {event.topic}", ", ".join(event.unknown))
            if event.policies:
                path = topic_policies_path(event.topic)
                documents.setdefault(path, {})[event.layer] = event.policies
        self.report.counts["topics with policies"] += len(documents)
        if self._write and not is_done:
            for path, document in documents.items():
                await put_node(self._ours, path, orjson.dumps(document))

    # --- transactions

    async def _coordinators(self) -> None:
        """Sequences that were given out aren't given out again."""
        found = await self._pulsar.coordinators()
        for number, (log, core) in sorted(found.items()):
            for each in unended(core):
                self._open.add(each.transaction)
                text = open_text(each, self._now_ms())
                self._find(Kind.REFUSED, f"transaction coordinator {number}", text)
            if self._write:
                properties = {MAX_SEQUENCE_PROPERTY: str(core.last_sequence)}
                await self._put_list(log.name, ManagedLedgerInfo(properties=properties))
        if found:
            self.report.counts["transaction coordinators"] += len(found)
            text = "Magnetar's brokers need transactionCoordinatorEnabled=true"
            self._find(Kind.NOTE, "transactions", text)

    async def _buffer(self, log: PulsarLog, snapshot: TransactionSnapshot) -> _Aborted:
        buffer = await self._pulsar.buffer(log, snapshot)
        late = [each for each in abort_late(buffer) if each not in self._open]
        if late:
            text = f"messages of {len(late)} transactions came after their ends, and are aborted"
            self._find(Kind.NOTE, log.name, text)
        self.report.counts["aborted transactions"] += buffer.aborted_total
        return _Aborted(buffer, late)

    async def _with_aborted(
        self, log: PulsarLog, found: _Aborted, info: ManagedLedgerInfo
    ) -> ManagedLedgerInfo:
        """The list of a topic whose load knows which transactions were aborted."""
        if not found.buffer.aborted_total:
            return info
        properties = {**info.properties, TRANSACTIONS_PROPERTY: format_position(EARLIEST)}
        if info.terminated is not None:  # it takes no entries: a load reads all of it
            for each in found.late:
                properties = with_end(properties, each, commit=False)
            return info.with_properties(properties)
        ledger_id = await self._snapshot_ledger(log, found.buffer)
        end = await self._pulsar.ledgers.metadata(ledger_id)
        if end is None:
            raise MigrationError(f"{log.name}: ledger {ledger_id}, just made, is gone")
        rows = info.with_properties(properties).with_ledger(ledger_id)
        return rows.with_closed(ledger_id, end.last_entry + 1, end.length, self._now_ms())

    async def _snapshot_ledger(self, log: PulsarLog, buffer: TopicTransactionBuffer) -> int:
        """One that a run that ended early has made, or a new one."""
        known = await read_stored(self._ours, log.own_name)
        if known is not None:
            for row in known.info.ledgers:
                if row.ledger_id not in log.ends:
                    return row.ledger_id
        mark = await begin_making(self._ours, f"{MANAGED_LEDGERS}/{log.own_name}")
        return await self._pulsar.ledgers.create(
            lambda ledger_id: snapshot_entries(buffer, ledger_id, self._now_ms()),
            {**MANAGED_LEDGER, "pulsar/managed-ledger": log.name.encode(), MARK: mark.encode()},
        )

    async def _named_at(self, path: str) -> set[int]:
        stored = await read_stored(self._ours, path.removeprefix(f"{MANAGED_LEDGERS}/"))
        return set() if stored is None else {row.ledger_id for row in stored.info.ledgers}

    async def _producer_names(self) -> None:
        """Names that our brokers make up begin behind those of Pulsar's."""
        node = await self._pulsar.store.put(
            f"{NAMES}/-", b"", CREATE_ONLY, ephemeral=True, sequential=True
        )
        await self._ours.put(NAMES, b"%d" % (int(node.path.rpartition("-")[2]) + 1))
        with suppress(NotFoundError):
            await self._pulsar.store.delete(node.path)

    def _find(self, kind: Kind, subject: str, text: str) -> None:
        self.report.add([SwapFinding(kind, subject, text)])


def is_left_document(path: str) -> bool:
    """Whether a document is of a topic that Pulsar's brokers have for themselves."""
    parts = path.removeprefix(_PARTITIONED).split("/")
    if not path.startswith(_PARTITIONED) or len(parts) < 4 or path == ASSIGNED_COORDINATORS:
        return False
    return is_left("/".join(parts[:2]), decode_name(parts[3]))
