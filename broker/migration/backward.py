"""From our brokers back to Apache Pulsar's: what was written meanwhile, in their forms.

Lists, positions, schemas, topic policies and documents go over the ones that Pulsar has left, so
that what we don't know of them stays. Every step may be repeated. Ledgers that nobody names any
more are deleted after Pulsar's brokers may start: a run that ends early has read all it needs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import orjson

from magnetar.broker.migration import marker
from magnetar.broker.migration import pulsar_metadata_pb2 as pb
from magnetar.broker.migration.conversion import (
    compacted_ledger,
    cursor_findings,
    cursor_for_pulsar,
    is_left,
    list_for_pulsar,
    unacknowledged,
    without_property,
)
from magnetar.broker.migration.doomed_ledgers import (
    begin_making,
    delete_doomed,
    delete_unnamed,
    doom,
    end_all_making,
    end_making,
    is_doomed,
    note,
    noted,
    nothing_named,
)
from magnetar.broker.migration.errors import MigrationError, PulsarFormatError
from magnetar.broker.migration.forward import (
    ASSIGNED_COORDINATORS,
    DOCUMENTS,
    MANAGED_LEDGER,
    NAMES,
    is_left_document,
)
from magnetar.broker.migration.ledger_access import MARK, LedgerAccess
from magnetar.broker.migration.marker import Marker, Serving
from magnetar.broker.migration.node_writes import put_node
from magnetar.broker.migration.own_logs import COORDINATORS, OwnLogs
from magnetar.broker.migration.policy_events import EVENTS_TOPIC, PolicyEvent, encode_event
from magnetar.broker.migration.pulsar_cluster import (
    PulsarCluster,
    PulsarLog,
    gather,
    log_of_topic,
    topic_groups_of,
    topic_of_log,
)
from magnetar.broker.migration.pulsar_forms import NO_LEDGER, pack
from magnetar.broker.migration.pulsar_schemas import (
    index_entry,
    locator,
    locator_index,
    schema_entry,
)
from magnetar.broker.migration.swap_report import Kind, SwapFinding, SwapReport
from magnetar.broker.migration.system_events import event_entry
from magnetar.broker.migration.transactions import (
    COORDINATOR_LOG,
    INDEXES,
    SCHEMA_PROPERTIES,
    SNAPSHOT_SCHEMA,
    SNAPSHOTS,
    TopicSnapshots,
    abort_late,
    open_text,
    unended,
)
from magnetar.broker.protocol.topic_name import PENDING_ACK_SUFFIX, TopicName
from magnetar.broker.resources.resources import MANAGED_LEDGERS, TOPIC_POLICIES, topic_of_policies
from magnetar.broker.schema.definition import SchemaDefinition, StoredSchema
from magnetar.broker.schema.history import SchemaHistory
from magnetar.broker.schema.registry import SCHEMAS
from magnetar.broker.transaction.async_coordinator import MAX_SEQUENCE_PROPERTY
from magnetar.broker.transaction.pending_ack_log import PENDING_ACKS
from magnetar.managed_ledger.cursor.cursor_image import CursorImage
from magnetar.managed_ledger.cursor.cursor_store import NO_LEDGER as IN_NODE
from magnetar.managed_ledger.managed_ledger_info import ManagedLedgerInfo
from magnetar.managed_ledger.offload.context import CopyState
from magnetar.managed_ledger.orphan_ledgers import COMPACTED_LEDGER
from magnetar.managed_ledger.stored_info import StoredManagedLedger, read_stored
from magnetar.metadata.paths import decode_name, encode_name, join
from magnetar.metadata.store import CREATE_ONLY, VALUE_BYTES_MAX, MetadataStore

_PERSISTENT: Final = "persistent"
_EVENT_BYTES_MAX: Final = 5_000_000  # what Pulsar's brokers read
_SCHEMA: Final = {"application": b"pulsar", "component": b"schema"}


@dataclass(slots=True)
class _LogChange:
    """What becomes of a topic's nodes.

    Attributes:
        before: what Pulsar has of it; None: nothing that stays.
        is_anew: the old ones are another topic's.
        node: None: there is none.
        dropped: subscriptions that are gone.
    """

    name: str
    before: PulsarLog | None = None
    is_anew: bool = False
    node: pb.ManagedLedgerNode | None = None
    cursors: dict[str, pb.ManagedCursorNode] = field(default_factory=dict)
    dropped: Sequence[str] = ()


class Backward:
    """One run; the arguments are those of `Forward`.

    Args:
        ledgers: ends ledgers that are open, if ``write``.
    """

    def __init__(
        self,
        pulsar: PulsarCluster,
        ours: MetadataStore,
        ledgers: LedgerAccess,
        now_ms: Callable[[], int],
        *,
        write: bool,
        accept_loss: bool = False,
    ) -> None:
        self._pulsar, self._ours, self._ledgers = pulsar, ours, ledgers
        self._now_ms, self._write, self._accept_loss = now_ms, write, accept_loss
        self._own = OwnLogs(ours, ledgers, now_ms)
        self._unnamed = set[int]()  # ledgers that nodes named before this run
        self._named = set[int]()  # those that nodes name after it
        self._noted = set[int]()
        self._since_ms = 0
        self.report = SwapReport()

    async def run(self) -> SwapReport:
        """All steps; with ``write`` brokers of Pulsar may start afterwards.

        A swap that isn't done is given up: it has changed nothing of Pulsar's.

        Raises:
            MigrationError: a broker runs, or the cluster isn't ours, or what was read back isn't
                what was written. The command may be given again. LossRefusedError: see there.
        """
        begun = await marker.read_marker(self._ours)
        if await self._is_given_up(begun):
            return self.report
        if begun is None or begun.serving not in (Serving.MAGNETAR, Serving.TO_PULSAR):
            raise MigrationError("this cluster isn't Magnetar's; nothing is to be given back")
        done = begun.done if begun.serving is Serving.TO_PULSAR else ""
        self._since_ms = begun.since_ms
        if self._write:
            await self._begin(begun)
            await self._documents()
        await self._coordinators()
        for namespace in await self._namespaces():
            await self._namespace(namespace, is_done=namespace <= done)
            if self._write and namespace > done:
                begun = begun._replace(serving=Serving.TO_PULSAR, done=namespace)
                await marker.write_marker(self._ours, begun)
        if self._write:
            await self._finish()
        return self.report

    async def _is_given_up(self, begun: Marker | None) -> bool:
        """Whether there was a swap that isn't done; it refuses Pulsar before it writes a mark.

        Or one back that wasn't ended: Pulsar's brokers may serve already.
        """
        if begun is None or begun.serving is Serving.PULSAR:
            is_refused = await marker.is_pulsar_refused(self._pulsar.store)
            if not is_refused and not await is_doomed(self._ours):
                return False
        elif begun.serving is not Serving.TO_MAGNETAR:
            return False
        if self._write:
            await delete_unnamed(self._ours, self._ledgers, nothing_named)
            await self._admit()
        return True

    async def _begin(self, begun: Marker) -> None:
        if begun.serving is Serving.MAGNETAR:
            await marker.write_marker(self._ours, begun._replace(serving=Serving.TO_PULSAR))
        try:
            await marker.check_none_live(self._ours, "brokers of Magnetar")
            await marker.refuse_pulsar(self._pulsar.store)
            await marker.check_none_live(self._pulsar.store, "brokers of Pulsar")
            looked = Backward(self._pulsar, self._ours, self._ledgers, self._now_ms, write=False)
            (await looked.run()).refuse(accept_loss=self._accept_loss)
        except MigrationError:
            await marker.write_marker(self._ours, begun)
            raise
        await delete_unnamed(self._ours, self._ledgers, self._named_at)
        await end_all_making(self._ours)

    async def _named_at(self, path: str) -> set[int]:
        """Ledgers of the locator of a schema, or of a topic's list."""
        if path.startswith(f"{SCHEMAS}/"):
            node = await self._pulsar.store.get(path)
            index = [] if node is None or not node.value else locator_index(node.value, path)
            return {each.position.ledgerId for each in index}
        log = await self._pulsar.log(path.removeprefix(f"{MANAGED_LEDGERS}/"), with_ends=False)
        return set() if log is None else {row.ledgerId for row in log.node.ledgers}

    async def _finish(self) -> None:
        if self.report.mismatches:
            raise MigrationError("; ".join(self.report.mismatches[:5]))
        await self._producer_names()
        await doom(self._ours, (self._unnamed | await noted(self._ours)) - self._named)
        await self._admit()

    async def _admit(self) -> None:
        await marker.write_marker(self._ours, Marker(Serving.PULSAR))
        await marker.admit_pulsar(self._pulsar.store)
        await delete_doomed(self._ours, self._ledgers)

    async def _namespaces(self) -> list[str]:
        """Those of either side: one may have been deleted, with all that was in it."""
        ours = PulsarCluster(self._ours, self._ledgers)
        return sorted({*await self._pulsar.namespaces(), *await ours.namespaces()})

    # --- documents

    async def _documents(self) -> None:
        for root in DOCUMENTS:
            await self._copy(root)

    async def _copy(self, path: str) -> None:
        if is_left_document(path):
            return
        ours, theirs = await self._ours.get(path), await self._pulsar.store.get(path)
        if ours is not None and ours.value:
            self.report.counts["documents"] += 1
            if theirs is None or theirs.value != ours.value:
                await self._pulsar.store.put(path, ours.value)
        names = set(await self._ours.children(path))
        old = set(await self._pulsar.store.children(path)) - names
        await gather(self._copy(join(path, name)) for name in sorted(names))
        for name in sorted(old):
            await self._drop(join(path, name))

    async def _drop(self, path: str) -> None:
        """A document that we don't have: deleted meanwhile, or left there."""
        for name in await self._pulsar.store.children(path):
            await self._drop(join(path, name))
        is_kept = is_left_document(path) or path == ASSIGNED_COORDINATORS
        if not is_kept and not await self._pulsar.store.children(path):
            await self._pulsar.store.delete(path)

    # --- topics

    async def _namespace(self, namespace: str, *, is_done: bool) -> None:
        logs = f"{namespace}/{_PERSISTENT}"
        theirs = await self._pulsar.store.children(f"{MANAGED_LEDGERS}/{logs}")
        ours = await self._ours.children(f"{MANAGED_LEDGERS}/{logs}")
        topics = {topic_of_log(f"{logs}/{each}") for each in theirs}
        topics |= {TopicName.from_ml_name(f"{logs}/{each}") for each in ours}
        wanted = [topic for topic in topics if not is_left(namespace, topic.local)]
        snapshots = TopicSnapshots(
            await self._pulsar.last_records(namespace, SNAPSHOTS),
            await self._pulsar.last_records(namespace, INDEXES),
        )
        for some in topic_groups_of(sorted(wanted, key=str)):
            changes = await gather(self._change(topic, snapshots) for topic in some)
            self._pulsar.advance(len(some))
            if self._write:
                await self._note()
                await gather(self._put(each, is_done=is_done) for each in changes)
        schemas = f"{SCHEMAS}/{namespace}"
        names = {*await self._ours.children(schemas), *await self._pulsar.store.children(schemas)}
        for encoded in sorted(names):
            if not is_left(namespace, decode_name(encoded)) and self._write and not is_done:
                await self._schema(f"{namespace}/{encoded}")
        if not is_done:
            await self._policies(namespace)
            await self._snapshots(namespace, snapshots)
            if self._write:
                await self._drop_pending_acks(logs)

    async def _note(self) -> None:
        """Before a node is overwritten: who goes on after this run finds only the new one."""
        await note(self._ours, self._unnamed - self._noted)
        self._noted |= self._unnamed

    async def _change(self, topic: TopicName, snapshots: TopicSnapshots) -> _LogChange:
        stored = await read_stored(self._ours, topic.ml_name)
        change = _LogChange(log_of_topic(topic))
        before = await self._pulsar.log(change.name, with_ends=False)
        if before is not None and (stored is None or stored.stat.created_ms > self._since_ms):
            # Deleted meanwhile, and perhaps made anew: nothing of the old one may stay.
            self._unname(before)
            before = None
            change.is_anew = True
            snapshots.forget(topic)
        change.before = before
        if stored is None:
            return change
        info = await self._own.ended(stored.info)
        node = list_for_pulsar(pb.ManagedLedgerNode() if before is None else before.node, info)
        self.report.counts["topics"] += 1
        self.report.counts["ledgers"] += len(node.ledgers)
        self.report.counts["messages or batches"] += sum(row.entries for row in node.ledgers)
        if self._is_too_much(change.name, info, pack(node)):
            return change  # its node stays as it is
        buffer = await self._own.buffer(topic.ml_name, info)
        abort_late(buffer)
        snapshots.put(topic, buffer, self._own.log(topic.ml_name, info).last_confirmed)
        self._unnamed.update(info.doomed)
        self._unnamed.update(row.ledger_id for row in info.apart)  # but for what a cursor names
        self._named.update(row.ledgerId for row in node.ledgers)
        change.node = node
        change.cursors = await self._cursors(topic, stored, before, info)
        change.dropped = self._dropped_cursors(change.name, before, change.cursors)
        return change

    async def _put(self, change: _LogChange, *, is_done: bool) -> None:
        store, path = self._pulsar.store, f"{MANAGED_LEDGERS}/{change.name}"
        if change.is_anew and not is_done:
            await store.delete_recursive(path)
        if change.node is None:
            return
        if not is_done:
            before, old = change.before, {} if change.before is None else change.before.cursors
            await put_node(store, path, pack(change.node), is_new=before is None)
            await gather(
                put_node(
                    store, join(path, encode_name(cursor)), pack(each), is_new=cursor not in old
                )
                for cursor, each in change.cursors.items()
            )
            for cursor in change.dropped:
                await store.delete_recursive(join(path, encode_name(cursor)))
        await self._check(change.name, change.node, change.cursors)

    def _is_too_much(self, name: str, info: ManagedLedgerInfo, value: bytes) -> bool:
        gone = [
            row.ledger_id
            for row in info.ledgers
            if row.offload is not None and row.offload.state >= CopyState.ONLY
        ]
        if gone:
            self._find(Kind.LOST, name, f"{len(gone)} ledgers are offloaded, in our form")
        if len(value) > VALUE_BYTES_MAX:
            text = f"a list of {len(info.ledgers)} ledgers, too long for Pulsar's node"
            self._find(Kind.LOST, name, text)
        return len(value) > VALUE_BYTES_MAX

    async def _cursors(
        self,
        topic: TopicName,
        stored: StoredManagedLedger,
        before: PulsarLog | None,
        info: ManagedLedgerInfo,
    ) -> dict[str, pb.ManagedCursorNode]:
        name = log_of_topic(topic)
        counts = {row.ledger_id: row.entries for row in info.ledgers}
        old = {} if before is None else before.cursors
        found = dict[str, pb.ManagedCursorNode]()
        for cursor, each in stored.cursors.items():
            where = f"{name}, subscription {cursor}"
            image = await self._ledgers.image(where, each.node)
            if PENDING_ACKS in (image.properties or {}):
                image = await self._own.with_committed(topic.ml_name, cursor, image, counts)
                image = without_property(image, PENDING_ACKS)
            image = self._without_offloaded(where, image, info)
            theirs = old[cursor].node if cursor in old else None
            node = cursor_for_pulsar(theirs, each.node, image)
            self.report.counts["subscriptions"] += 1
            left = unacknowledged(counts, image)
            self.report.counts["of them unacknowledged by a subscription"] += left
            if len(pack(node)) > VALUE_BYTES_MAX:
                text = f"{len(node.individualDeletedMessages)} ranges of acknowledged messages"
                self._find(Kind.LOST, where, f"{text}, too many for Pulsar's node")
                del node.individualDeletedMessages[:]
                del node.batchedEntryDeletionIndexInfo[:]
            if each.node.ledger_id != IN_NODE:
                self._unnamed.add(each.node.ledger_id)
            if theirs is not None and theirs.cursorsLedgerId != NO_LEDGER:
                self._unnamed.add(theirs.cursorsLedgerId)
            if (ledger_id := compacted_ledger(image)) is not None:
                self._named.add(ledger_id)
            found[cursor] = node
        self._unname_compacted(before)
        return found

    def _without_offloaded(
        self, where: str, image: CursorImage, info: ManagedLedgerInfo
    ) -> CursorImage:
        """A compacted ledger that only a copy of ours has can't be named."""
        ledger_id = compacted_ledger(image)
        row = None if ledger_id is None else info.find_apart(ledger_id)
        if row is None or row.offload is None or not row.offload.is_only:
            return image
        text = f"compacted ledger {ledger_id} is offloaded, in our form"
        self._find(Kind.LOST, where, f"{text}: readers get what the topic has")
        return without_property(image, COMPACTED_LEDGER)

    def _unname_compacted(self, log: PulsarLog | None) -> None:
        if log is not None and log.compacted_ledger is not None:
            self._unnamed.add(log.compacted_ledger)

    def _dropped_cursors(
        self, log: str, before: PulsarLog | None, cursors: dict[str, pb.ManagedCursorNode]
    ) -> list[str]:
        """Subscriptions that were deleted meanwhile."""
        dropped = list[str]()
        for name, cursor in ({} if before is None else before.cursors).items():
            if name in cursors or cursor_findings(log, name, cursor.node) is None:
                continue
            dropped.append(name)
            if cursor.node.cursorsLedgerId != NO_LEDGER:
                self._unnamed.add(cursor.node.cursorsLedgerId)
        return dropped

    def _unname(self, log: PulsarLog) -> None:
        """Everything that a deleted topic of Pulsar's still has; ours deleted the other ledgers."""
        self._unnamed.update(row.ledgerId for row in log.node.ledgers)
        ids = (cursor.node.cursorsLedgerId for cursor in log.cursors.values())
        self._unnamed.update(each for each in ids if each != NO_LEDGER)
        self._unname_compacted(log)

    async def _check(
        self,
        name: str,
        node: pb.ManagedLedgerNode,
        cursors: dict[str, pb.ManagedCursorNode],
    ) -> None:
        """What Pulsar's brokers will find, against what ours left."""
        found = await self._pulsar.log(name, with_ends=False)
        if found is None or found.node != node:
            self.report.mismatches.append(f"{name}: another list")
            return
        for cursor, wanted in cursors.items():
            if found.cursors[cursor].node != wanted:
                self.report.mismatches.append(f"{name}, subscription {cursor}: another position")

    # --- schemas

    async def _schema(self, name: str) -> None:
        path = f"{SCHEMAS}/{name}"  # encoded by both in one way
        ours, theirs = await self._ours.get(path), await self._pulsar.store.get(path)
        if ours is None:
            if theirs is not None and theirs.value:
                self._unnamed.update(
                    each.position.ledgerId for each in locator_index(theirs.value, path)
                )
                await self._note()
                await self._pulsar.store.delete_recursive(path)
            return
        index = [] if theirs is None or not theirs.value else locator_index(theirs.value, path)
        known = {each.version: each.hash for each in index}
        versions = SchemaHistory.decode(path, ours.value).versions
        nowhere = pb.NestedPosition(ledgerId=NO_LEDGER, entryId=NO_LEDGER)
        hashes = {each.version: index_entry(each, nowhere).hash for each in versions}
        if any(known.get(version, digest) != digest for version, digest in hashes.items()):
            self._unnamed.update(each.position.ledgerId for each in index)
            await self._note()
            index, known = [], {}  # forgotten, and begun anew at version 0
        await self._put_schema(name, [x for x in versions if x.version not in known], index)

    async def _put_schema(
        self, name: str, new: Sequence[StoredSchema], index: list[pb.SchemaIndexEntry]
    ) -> None:
        """A ledger for each new version behind those of ``index``, and the locator of all."""
        namespace, _, encoded = name.rpartition("/")
        topic, path = f"{namespace}/{decode_name(encoded)}", f"{SCHEMAS}/{name}"
        mark = await begin_making(self._ours, path) if new else ""
        for stored in new:
            custom = {**_SCHEMA, "pulsar/schemaId": topic.encode(), MARK: mark.encode()}
            ledger_id = await self._create([schema_entry(topic, stored, index)], custom)
            position = pb.NestedPosition(ledgerId=ledger_id, entryId=0)
            index.append(index_entry(stored, position))
            self.report.counts["new versions of schemas"] += 1
        self._named.update(each.position.ledgerId for each in index)
        if index:
            await self._pulsar.store.put(path, locator(index))
        if new:
            await end_making(self._ours, mark)

    # --- policies of topics

    async def _policies(self, namespace: str) -> None:
        before = await self._pulsar.policy_events(namespace)
        now = await self._own_policies(namespace)
        changed = list[PolicyEvent]()
        for key in sorted({*before, *now}, key=str):
            policies = now.get(key)
            old = before[key].policies if key in before else None
            if (policies or None) != (old or None):
                unknown = before[key].unknown if key in before else {}
                changed.append(PolicyEvent(*key, policies, unknown))
        if changed:
            await self._append(namespace, changed)

    async def _own_policies(self, namespace: str) -> dict[tuple[TopicName, str], dict[str, Any]]:
        found = dict[tuple[TopicName, str], dict[str, Any]]()
        for domain in await self._ours.children(f"{TOPIC_POLICIES}/{namespace}"):
            root = f"{TOPIC_POLICIES}/{namespace}/{domain}"
            for encoded in await self._ours.children(root):
                path = join(root, encoded)
                topic, stored = topic_of_policies(path), await self._ours.get(path)
                if topic is None or stored is None or not stored.value:
                    continue
                for layer, policies in orjson.loads(stored.value).items():
                    found[topic, layer] = policies
        return found

    async def _append(self, namespace: str, events: list[PolicyEvent]) -> None:
        """One more ledger of the system topic, with an event for each change."""
        logs = await self._pulsar.system_logs(namespace, EVENTS_TOPIC)
        definition, version = await self._events_schema(namespace)
        if len(logs) > 1 or definition is None:
            text = "there is no single topic for them, or no schema; set them again"
            self.report.add(
                SwapFinding(Kind.LOST, f"policies of {event.topic}", text) for event in events
            )
            return
        cluster = (await self._pulsar.store.children("/admin/clusters"))[0]
        entries, now_ms = list[bytes](), self._now_ms()
        for event in events:
            try:
                entries.append(
                    encode_event(event, definition, version, cluster, len(entries), now_ms)
                )
            except PulsarFormatError as error:
                self._find(Kind.LOST, f"policies of {event.topic}", str(error))
        self.report.counts["changed policies of topics"] += len(entries)
        if self._write and entries:
            name = logs[0] if logs else f"{namespace}/{_PERSISTENT}/{EVENTS_TOPIC}"
            await self._append_ledger(name, entries)

    async def _create(self, entries: Sequence[bytes], custom: dict[str, bytes]) -> int:
        return await self._ledgers.create(lambda _: entries, custom)

    async def _append_ledger(self, name: str, entries: Sequence[bytes]) -> None:
        """One more ledger of a log of Pulsar's, which may not exist."""
        path, now_ms = f"{MANAGED_LEDGERS}/{name}", self._now_ms()
        mark = await begin_making(self._ours, path)
        custom = {
            **MANAGED_LEDGER,
            "pulsar/managed-ledger": name.encode(),
            MARK: mark.encode(),
        }
        ledger_id = await self._create(entries, custom)
        log, size = await self._pulsar.log(name), sum(map(len, entries))
        rows = pb.ManagedLedgerNode()
        if log is not None:
            rows.CopyFrom(log.node)
            for row in rows.ledgers:  # the newest one has no end yet, and won't be the newest
                known = log.ends[row.ledgerId]
                if known is not None and not row.timestamp:
                    row.entries, row.size = known.last_entry + 1, known.length
                    row.timestamp = now_ms
        rows.ledgers.add(ledgerId=ledger_id, entries=len(entries), size=size, timestamp=now_ms)
        await self._pulsar.store.put(path, pack(rows))
        await end_making(self._ours, mark)

    async def _events_schema(self, namespace: str) -> tuple[bytes | None, int]:
        """Definition and version for events of a namespace; if it has none, another one's."""
        own = f"{namespace}/{EVENTS_TOPIC}"
        schema = await self._pulsar.schema(own)
        if schema.versions:
            return schema.versions[-1].definition.data, schema.versions[-1].version
        for other in await self._pulsar.namespaces():
            versions = (await self._pulsar.schema(f"{other}/{EVENTS_TOPIC}")).versions
            if versions:
                first = replace(versions[-1], version=0)
                if self._write:
                    await self._put_schema(own, [first], [])
                return first.definition.data, 0
        return None, 0

    # --- transactions

    async def _coordinators(self) -> None:
        """Sequences that were given out aren't given out again."""
        found = await self._own.coordinators()
        self.report.counts["transaction coordinators"] += len(found)
        for number, core in sorted(found.items()):
            for each in unended(core):
                text = open_text(each, self._now_ms())
                self._find(Kind.REFUSED, f"transaction coordinator {number}", text)
            if self._write:
                name = f"{COORDINATORS}/{COORDINATOR_LOG}{number}"
                last = pb.KeyValue(key=MAX_SEQUENCE_PROPERTY, value=str(core.last_sequence))
                # Without the old ledgers: their last entry would count more than the property.
                await self._drop_log(name)
                node = pb.ManagedLedgerNode(properties=[last])
                await self._pulsar.store.put(f"{MANAGED_LEDGERS}/{name}", pack(node))

    async def _drop_log(self, name: str) -> None:
        """Of Pulsar's and of ours."""
        if (log := await self._pulsar.log(name, with_ends=False)) is not None:
            self._unname(log)
        self._unnamed |= await self._own.ledgers_of(name)
        await self._note()
        await self._pulsar.store.delete_recursive(f"{MANAGED_LEDGERS}/{name}")

    async def _drop_pending_acks(self, logs: str) -> None:
        """What was committed of them is in positions, and nothing is pending."""
        for store in (self._pulsar.store, self._ours):
            for encoded in await store.children(f"{MANAGED_LEDGERS}/{logs}"):
                if encoded.endswith(PENDING_ACK_SUFFIX):
                    await self._drop_log(f"{logs}/{encoded}")

    async def _snapshots(self, namespace: str, snapshots: TopicSnapshots) -> None:
        """Which transactions were aborted, for brokers of Pulsar that load the topics."""
        for local, records in snapshots.changes():
            if not records:
                continue
            logs = await self._pulsar.system_logs(namespace, local)
            if len(logs) > 1:
                text = f"{local} has {len(logs)} partitions; aborted transactions can't be told"
                self._find(Kind.REFUSED, namespace, text)
            schema = await self._snapshot_schema(namespace)
            now_ms = self._now_ms()
            entries = [
                event_entry(topic, record, schema, number, now_ms)
                for number, (topic, record) in enumerate(records.items())
            ]
            for topic, entry in zip(records, entries, strict=True):
                if len(entry) > _EVENT_BYTES_MAX:
                    text = "more aborted transactions than a snapshot of Pulsar's can hold"
                    self._find(Kind.REFUSED, topic, text)
            if self._write:
                name = logs[0] if logs else f"{namespace}/{_PERSISTENT}/{local}"
                await self._append_ledger(name, entries)

    async def _snapshot_schema(self, namespace: str) -> tuple[bytes, int]:
        name = f"{namespace}/{SNAPSHOTS}"
        versions = (await self._pulsar.schema(name)).versions
        if versions:
            return versions[-1].definition.data, versions[-1].version
        definition = SchemaDefinition("AVRO", SNAPSHOT_SCHEMA, SCHEMA_PROPERTIES)
        if self._write:
            await self._put_schema(name, [StoredSchema(0, self._now_ms(), definition)], [])
        return SNAPSHOT_SCHEMA, 0

    async def _producer_names(self) -> None:
        """Names that Pulsar's brokers make up begin behind those of ours."""
        found = await self._ours.get(NAMES)
        wanted = int(found.value) if found is not None and found.value else 0
        number = -1
        while number < wanted:
            node = await self._pulsar.store.put(
                f"{NAMES}/-", b"", CREATE_ONLY, ephemeral=True, sequential=True
            )
            number = int(node.path.rpartition("-")[2])
            await self._pulsar.store.delete(node.path)

    def _find(self, kind: Kind, subject: str, text: str) -> None:
        self.report.add([SwapFinding(kind, subject, text)])
