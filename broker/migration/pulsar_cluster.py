"""Reads what brokers of Apache Pulsar have stored; changes nothing."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from magnetar.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.broker.compaction.compacted_entry import decode_compacted
from magnetar.broker.migration import pulsar_metadata_pb2 as pb
from magnetar.broker.migration.conversion import (
    SYSTEM_NAMESPACE,
    Ends,
    compacted_ledger,
    is_left,
)
from magnetar.broker.migration.errors import PulsarFormatError
from magnetar.broker.migration.ledger_access import LedgerAccess
from magnetar.broker.migration.policy_events import EVENTS_TOPIC, PolicyEvent, read_events
from magnetar.broker.migration.pulsar_forms import (
    NO_LEDGER,
    cursor_node,
    image_of_entry,
    image_of_node,
    log_node,
    parse,
    properties_of,
)
from magnetar.broker.migration.pulsar_schemas import locator_index, stored_schema
from magnetar.broker.migration.stored_log import StoredLog
from magnetar.broker.migration.system_events import records_of
from magnetar.broker.migration.transactions import (
    COORDINATOR_LOG,
    INDEXES,
    SEGMENTS,
    SNAPSHOTS,
    snapshot_of,
    snapshot_of_index,
    with_committed,
)
from magnetar.broker.protocol.stored_entries import PULSAR_ENTRIES
from magnetar.broker.protocol.topic_name import PENDING_ACK_SUFFIX, TopicName
from magnetar.broker.resources.resources import MANAGED_LEDGERS
from magnetar.broker.schema.definition import StoredSchema
from magnetar.broker.schema.registry import SCHEMAS
from magnetar.broker.transaction.buffer import TopicTransactionBuffer
from magnetar.broker.transaction.coordinator import Coordinator
from magnetar.broker.transaction.transaction_records_pb2 import TransactionSnapshot
from magnetar.managed_ledger.cursor.cursor_image import CursorImage
from magnetar.managed_ledger.entry_batch import EntryBatch
from magnetar.managed_ledger.orphan_ledgers import COMPACTION_CURSOR
from magnetar.managed_ledger.position import EARLIEST, Position
from magnetar.metadata.paths import decode_name, encode_name
from magnetar.metadata.store import MetadataStore

T = TypeVar("T")
_AT_ONCE: Final = 64
_TOPICS_AT_ONCE: Final = 256
"""An open ledger's end is four synced writes one after the other, at ZooKeeper and bookies, which
sync those of many ledgers together."""
_PERSISTENT: Final = "persistent"


class PulsarCursor(NamedTuple):
    """
    Attributes:
        has_lost_ledger: the node names a cursor ledger that isn't there, or is empty: the position
            is that of the node, an older one.
    """

    node: pb.ManagedCursorNode
    image: CursorImage
    has_lost_ledger: bool


class PulsarLog(NamedTuple):
    """
    Attributes:
        name: ``tenant/namespace/persistent/topic``, encoded as in the node's path.
        own_name: the same as our brokers encode it.
        ends: of all listed ledgers.
        cursors: by name, decoded.
    """

    name: str
    node: pb.ManagedLedgerNode
    ends: Ends
    cursors: dict[str, PulsarCursor]

    @property
    def own_name(self) -> str:
        return topic_of_log(self.name).ml_name

    @property
    def counts(self) -> dict[int, int]:
        """Entries of each listed ledger."""
        return {
            row.ledgerId: row.entries
            if (end := self.ends[row.ledgerId]) is None
            else end.last_entry + 1
            for row in self.node.ledgers
        }

    @property
    def start(self) -> Position:
        """What its cursors need is behind it."""
        return min((each.image.mark_delete for each in self.cursors.values()), default=EARLIEST)

    @property
    def compacted_ledger(self) -> int | None:
        """With the newest message of each key; None: it was never compacted."""
        compaction = self.cursors.get(COMPACTION_CURSOR)
        return compaction and compacted_ledger(compaction.image)


class PulsarSchema(NamedTuple):
    """
    Attributes:
        name: ``tenant/namespace/topic``, encoded.
        lost: versions whose ledger is gone.
    """

    name: str
    versions: list[StoredSchema]
    lost: list[int]


class PulsarCluster:
    """One cluster's metadata and the ledgers that they name.

    Every method raises MigrationError for what isn't of Pulsar's form, or can't be read.

    Args:
        advance: is told of topics that were read or converted, for people who wait.
    """

    def __init__(
        self,
        store: MetadataStore,
        ledgers: LedgerAccess,
        advance: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.store, self.ledgers, self.advance = store, ledgers, advance

    async def namespaces(self) -> list[str]:
        """All that have policies, topics or schemas, sorted."""
        found = set[str]()
        for root in ("/admin/policies", MANAGED_LEDGERS, SCHEMAS):
            for tenant in await self.store.children(root):
                names = await self.store.children(f"{root}/{tenant}")
                found.update(f"{tenant}/{name}" for name in names)
        return sorted(found)

    async def logs(self, namespace: str) -> AsyncIterator[list[PulsarLog]]:
        """All but those of Pulsar's brokers themselves, some at a time."""
        names = await self.store.children(f"{MANAGED_LEDGERS}/{namespace}/{_PERSISTENT}")
        pending = {decode_name(name): name for name in names if name.endswith(PENDING_ACK_SUFFIX)}
        wanted = [name for name in names if not is_left(namespace, decode_name(name))]
        for some in topic_groups_of(wanted):
            found = await gather(
                self.log(f"{namespace}/{_PERSISTENT}/{encoded}") for encoded in some
            )
            yield [await self._acknowledged(log, pending) for log in found if log is not None]

    async def _acknowledged(self, log: PulsarLog, pending: Mapping[str, str]) -> PulsarLog:
        """With what transactions have acknowledged: a broker that was killed hasn't stored it.

        Args:
            pending: logs of such acknowledgements in the namespace, by decoded name.
        """
        namespace, _, encoded = log.name.rpartition("/")
        cursors = dict(log.cursors)
        for name, cursor in log.cursors.items():
            local = f"{decode_name(encoded)}-{encode_name(name)}{PENDING_ACK_SUFFIX}"
            acks = local in pending and await self.log(f"{namespace}/{pending[local]}")
            if acks:
                read = self.stored(acks).entries_after(acks.start)
                entries = [each async for _, each in read]
                image = with_committed(cursor.image, log.counts.items(), entries, acks.name)
                cursors[name] = cursor._replace(image=image)
        return log._replace(cursors=cursors)

    def stored(self, log: PulsarLog) -> StoredLog:
        """Its entries, without its cursors."""
        properties = properties_of(log.node.properties)
        return StoredLog(log.name, properties, log.counts.items(), self.ledgers)

    async def log(self, name: str, *, with_ends: bool = True) -> PulsarLog | None:
        """None: there is no such log.

        Args:
            with_ends: False: all `ends` are None, and `counts` are those of the list: enough for
                who looks at nodes only.
        """
        path = f"{MANAGED_LEDGERS}/{name}"
        stored = await self.store.get(path)
        if stored is None:
            return None
        node = log_node(stored.value, path)
        ends: dict[int, LedgerMetadata | None] = dict.fromkeys(r.ledgerId for r in node.ledgers)
        for some in groups_of(node.ledgers if with_ends else ()):
            found = await gather(self.ledgers.end(row.ledgerId) for row in some)
            ends.update((row.ledgerId, end) for row, end in zip(some, found, strict=True))
        cursors = dict[str, PulsarCursor]()
        found_log = PulsarLog(name, node, ends, cursors)
        counts = found_log.counts
        for names in groups_of(await self.store.children(path)):
            read = await gather(self._cursor(f"{path}/{encoded}", counts) for encoded in names)
            for encoded, cursor in zip(names, read, strict=True):
                if cursor is not None:
                    cursors[decode_name(encoded)] = cursor
        return found_log

    async def _cursor(self, path: str, counts: dict[int, int]) -> PulsarCursor | None:
        stored = await self.store.get(path)
        if stored is None:
            return None
        node = cursor_node(stored.value, path)
        if node.cursorsLedgerId == NO_LEDGER:
            return PulsarCursor(node, image_of_node(node, counts), False)
        entry = await self.ledgers.last_entry(node.cursorsLedgerId)
        if entry is None:
            return PulsarCursor(node, image_of_node(node, counts), True)
        where = f"{path}, ledger {node.cursorsLedgerId}"
        image = image_of_entry(parse(pb.CursorEntry, entry, where), counts)
        return PulsarCursor(node, image, False)

    async def schemas(self, namespace: str) -> AsyncIterator[PulsarSchema]:
        """All but those of Pulsar's own topics."""
        for encoded in await self.store.children(f"{SCHEMAS}/{namespace}"):
            if not is_left(namespace, decode_name(encoded)):
                yield await self.schema(f"{namespace}/{encoded}")

    async def schema(self, name: str) -> PulsarSchema:
        """No versions: there is no such schema."""
        path = f"{SCHEMAS}/{name}"
        stored = await self.store.get(path)
        found = PulsarSchema(name, [], [])
        if stored is None or not stored.value:
            return found
        for each in locator_index(stored.value, path):
            position = each.position
            read = self.ledgers.entries(position.ledgerId, position.entryId)
            entries = [entry async for entry in read]
            if entries:
                where = f"{path}, ledger {position.ledgerId}"
                found.versions.append(stored_schema(each.version, entries[0], where))
            else:
                found.lost.append(each.version)
        return found

    async def policy_events(self, namespace: str) -> dict[tuple[TopicName, str], PolicyEvent]:
        """What the namespace's topics have as policies of their own."""
        found: dict[tuple[TopicName, str], PolicyEvent] = {}
        definitions = await self._definitions(namespace, EVENTS_TOPIC)
        for name in await self.system_logs(namespace, EVENTS_TOPIC):
            found |= read_events(await self._log_entries(name), definitions, name)
        return found

    async def _definitions(self, namespace: str, local: str) -> dict[int, bytes]:
        schema = await self.schema(f"{namespace}/{local}")
        return {each.version: each.definition.data for each in schema.versions}

    async def system_logs(self, namespace: str, local: str) -> list[str]:
        """Names of the logs of a system topic: one, or one for each partition."""
        names = await self.store.children(f"{MANAGED_LEDGERS}/{namespace}/{_PERSISTENT}")
        return [
            f"{namespace}/{_PERSISTENT}/{encoded}"
            for encoded in names
            if topic_of_log(f"{namespace}/{_PERSISTENT}/{encoded}").base.local == local
        ]

    async def _log_entries(self, name: str) -> list[bytes]:
        log, entries = await self.log(name), list[bytes]()
        if log is None:
            return entries
        if log.compacted_ledger is not None:
            async for each in self.ledgers.entries(log.compacted_ledger):
                entries.append(bytes(decode_compacted(each)[1]))
        async for _, each in self.stored(log).entries_after(EARLIEST):
            entries.append(each)
        return entries

    # --- transactions

    async def coordinators(self) -> dict[int, tuple[PulsarLog, Coordinator]]:
        """By number, with their logs."""
        found = dict[int, tuple[PulsarLog, Coordinator]]()
        logs = f"{SYSTEM_NAMESPACE}/{_PERSISTENT}"
        for encoded in await self.store.children(f"{MANAGED_LEDGERS}/{logs}"):
            number = encoded.removeprefix(COORDINATOR_LOG)
            if number.isdecimal() and (log := await self.log(f"{logs}/{encoded}")) is not None:
                core = await self.stored(log).coordinator(int(number), log.start)
                found[int(number)] = log, core
        return found

    async def snapshots(self, namespace: str) -> dict[str, TransactionSnapshot]:
        """By topic: what was aborted there, as it was stored last."""
        found = dict[str, TransactionSnapshot]()
        for topic, record in (await self.last_records(namespace, SNAPSHOTS)).items():
            found[topic] = snapshot_of(record)
        indexes = await self.last_records(namespace, INDEXES)
        if not indexes:
            return found
        segments = dict[str, dict[int, Any]]()
        for record in (await self.last_records(namespace, SEGMENTS)).values():
            segments.setdefault(record["topicName"], {})[record["sequenceId"]] = record
        for topic, record in indexes.items():
            log = await self.log(log_of_topic(TopicName.parse(topic)))
            if log is None:
                continue
            last = max((row.ledgerId for row in log.node.ledgers), default=-1)
            try:
                snapshot = snapshot_of_index(record, segments.get(topic, {}), last)
            except KeyError as error:
                text = f"segment {error} of its aborted transactions is missing"
                raise PulsarFormatError(f"{topic}: {text}") from error
            # A broker's setting says which of both it writes: the newer one counts.
            if topic not in found or _upto(found[topic]) <= _upto(snapshot):
                found[topic] = snapshot
        return found

    async def last_records(self, namespace: str, local: str) -> dict[str, Any]:
        """By key, without those that were deleted."""
        definitions = await self._definitions(namespace, local)
        found = dict[str, Any]()
        for name in await self.system_logs(namespace, local):
            found.update(records_of(await self._log_entries(name), definitions, name))
        return {key: record for key, record in found.items() if record is not None}

    async def buffer(self, log: PulsarLog, snapshot: TransactionSnapshot) -> TopicTransactionBuffer:
        """What the topic's broker would recover."""
        buffer = TopicTransactionBuffer(EARLIEST)
        buffer.restore(snapshot)
        stored = self.stored(log)
        async for position, each in stored.entries_after(buffer.noted):
            buffer.on_entries(EntryBatch(*position, *PULSAR_ENTRIES.split([each])))
        buffer.on_trimmed(stored.offsets.first_position())
        return buffer


def _upto(snapshot: TransactionSnapshot) -> Position:
    return snapshot.uptoLedger, snapshot.uptoEntry


def topic_of_log(name: str) -> TopicName:
    """The topic of a managed ledger of Pulsar's, which encodes a space as ``+``."""
    namespace, domain, encoded = name.rsplit("/", 2)
    return TopicName.parse(f"{domain}://{namespace}/{decode_name(encoded)}")


def log_of_topic(topic: TopicName) -> str:
    """The reverse."""
    return f"{topic.namespace}/{topic.domain}/{encode_name(topic.local)}"


def groups_of(items: Sequence[T]) -> list[Sequence[T]]:
    """As many of a topic's items as are worked on at once."""
    return [items[start : start + _AT_ONCE] for start in range(0, len(items), _AT_ONCE)]


def topic_groups_of(topics: Sequence[T]) -> list[Sequence[T]]:
    """As many of the topics as are worked on at once."""
    size = _TOPICS_AT_ONCE
    return [topics[start : start + size] for start in range(0, len(topics), size)]


async def gather(calls: Iterable[Awaitable[T]]) -> list[T]:
    """As many calls at once as the caller has; the first error ends it."""
    return list(await asyncio.gather(*calls))
