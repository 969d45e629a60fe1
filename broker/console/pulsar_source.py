"""A cluster of Apache Pulsar: what Magnetar tells by routes of its own is put together here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from magnetar.broker.console.admin_api import AdminApi, AdminError, get
from magnetar.broker.console.affinity_row import affinity_rows
from magnetar.broker.console.bookie_view import ONLY_A_RACK
from magnetar.broker.console.draft import Delivery
from magnetar.broker.console.formats import segment, span
from magnetar.broker.console.pulsar_cursors import delivery_of
from magnetar.broker.console.pulsar_schemas import PulsarSchemas
from magnetar.broker.console.snapshot import (
    Snapshot,
    SnapshotHistory,
    explanation_of,
    explanations_of_partitions,
    page_of,
    rows_of,
    sums_by_namespace,
    suspects_of,
)
from magnetar.broker.console.source import (
    CONNECTIONS,
    DELIVERIES,
    OPEN,
    TRANSACTIONS,
    Changes,
    Connections,
    Deliveries,
    GrantsOfRole,
    IndexPage,
    IndexQuery,
    NamespaceSums,
    OpenTransactions,
    Roles,
    Source,
    StatsLists,
    TopicSchema,
)
from magnetar.broker.console.subject import topic_stats
from magnetar.broker.console.topic_path import TopicPath
from magnetar.broker.console.topic_view import ClientQuery, listed_subscriptions, partition_stats
from magnetar.broker.console.transactions_page import listed_row
from magnetar.broker.dispatch.explanation import not_compacted
from magnetar.broker.doctor.cluster_checks import ClusterFacts, PeerFacts, check_cluster
from magnetar.broker.doctor.findings import bounded
from magnetar.broker.doctor.topic_checks import (
    SubscriptionFacts,
    TopicsFacts,
    check_topics,
    subscription_facts,
)
from magnetar.broker.index.figure_recorder import LATENCIES
from magnetar.broker.index.history_answer import (
    HistoryScan,
    broker_history,
    merged_partitions,
    topic_history,
)
from magnetar.metadata.loop_turns import run_in_turns

if TYPE_CHECKING:
    from magnetar.broker.console.pulsar_messages import PulsarMessages
    from magnetar.broker.console.pulsar_policies import Rows
    from magnetar.broker.policies.table import Policy, PolicyRoute

# What `magnetar top` doesn't need is imported where it is used: that would be half of its start.
T = TypeVar("T")

_WATCH_S: Final = 60.0
"""A snapshot is taken as often for the history while nobody looks."""
_AT_ONCE: Final = 8
"""Calls at the same time."""
_OPEN_MAX: Final = 1_000
"""Transactions of a coordinator that are asked for: Pulsar tells each with all of its topics."""
_BUSY: Final = 20
"""Subscriptions with consumers that are looked at: those with the largest backlogs."""
_FRESH_S: Final = 10.0
_SHARE: Final = 20.0
"""A snapshot is kept for this many times as long as it took, so that brokers rest."""
_NO_LIST: Final = "Apache Pulsar doesn't list schemas: of the topics of each page, those with one."
_OWN_FORMS: Final = frozenset({"AVRO", "KEY_VALUE", "PROTOBUF", "PROTOBUF_NATIVE"})
"""Schemas whose values Pulsar wants in other texts than we do."""


class PulsarSource(Source):
    product = "Apache Pulsar"
    roles_note = "Apache Pulsar doesn't list grants of single topics and superusers."
    lists_schemas = False
    audit_note = "Apache Pulsar doesn't remember who changed what."
    remembers_changes = False
    bookies_note = (
        "Apache Pulsar lists the bookies that have joined the cluster and were not taken out,"
        " whether they are up or not. State, disk and latency are known to the bookies and to"
        " ZooKeeper: bookkeeper shell listbookies -rw, -ro. A broker's Health tells whether"
        " entries can be stored now."
    )
    settings_note = "Apache Pulsar tells no defaults: these were changed at run time."

    def __init__(
        self, api: AdminApi, messages: PulsarMessages | None = None, masked_fields: str = ""
    ) -> None:
        """
        Args:
            messages: where they are read; None: nobody asks for them.
        """
        super().__init__(api, masked_fields=masked_fields)
        self._messages = messages
        self._limit = asyncio.Semaphore(_AT_ONCE)
        self._snapshot: Snapshot | None = None
        self._taking: asyncio.Task[Snapshot] | None = None
        self._checked: tuple[Snapshot, list[dict[str, Any]]] | None = None
        """A snapshot, and its findings."""
        self._history = SnapshotHistory()
        self._schemas = PulsarSchemas(api, time.monotonic)

    async def topics(self, query: IndexQuery) -> IndexPage:
        found = await self._figures()
        page = page_of(found.topics, query, _note(found), found.system_topics)
        page = self._with_history(page, query)
        if query.schemas:
            schemas = await self._schemas.of([row["topic"] for row in page.rows])
            rows = zip(page.rows, schemas, strict=True)
            page = replace(page, rows=[{**row, "schema": schema} for row, schema in rows])
        return page

    async def schemas(self, query: IndexQuery) -> IndexPage:
        """Those among the topics of a page: there is no list of them."""
        page = page_of((await self._figures()).topics, replace(query, grouped=True), _NO_LIST)
        topics = [row["topic"] for row in page.rows]
        found = zip(topics, await self._schemas.of(topics), strict=True)
        rows = [{**schema, "topic": topic} for topic, schema in found if schema is not None]
        strategies = await self._schemas.compatibility([row["topic"] for row in rows])
        for row, strategy in zip(rows, strategies, strict=True):
            row["compatibility"] = strategy
        return replace(page, rows=rows)

    async def _count_of_schemas(self) -> dict[str, int]:
        return {}

    async def subscriptions(self, query: IndexQuery) -> IndexPage:
        found = await self._figures()
        note = f"{_note(found)} Those of topics that no broker has loaded are missing."
        return self._with_history(page_of(found.subscriptions, query, note), query)

    def _with_history(self, page: IndexPage, query: IndexQuery) -> IndexPage:
        if query.points:
            scan = HistoryScan(self._history.recorder, page.rows, query.points)
            while scan.step():
                pass
        return page

    async def namespaces(self, *, partial: bool = False) -> NamespaceSums:
        """Of all topics that the last snapshot has, also where a part would do."""
        topics = (await self._figures()).topics
        loaded = sum(row.get("msgRateIn") is not None for row in topics)
        return NamespaceSums(sums_by_namespace(topics), read=(loaded, loaded))

    async def topic_stats(
        self, topic: TopicPath, query: ClientQuery, lists: StatsLists
    ) -> tuple[int, dict[str, Any]]:
        """Of all subscriptions: Pulsar doesn't tell which are the furthest behind."""
        return await topic_stats(self.api, topic, per_partition=lists.partitions)

    async def explanations(
        self, topic: TopicPath, stats: Mapping[str, Any]
    ) -> dict[str, dict[str, Any]]:
        """From the statistics; a reason that they don't tell is missing."""
        from magnetar.managed_ledger.orphan_ledgers import COMPACTION_CURSOR

        subscriptions = stats.get("subscriptions", {})
        if parts := partition_stats(stats):
            by_number = ((str(number), part) for number, part in parts.items())
            told = await run_in_turns(explanations_of_partitions(subscriptions, by_number))
        else:
            found = {name: explanation_of(each) for name, each in subscriptions.items()}
            told = {name: each.as_json() for name, each in found.items() if each is not None}
        backlog = stats.get("subscriptions", {}).get(COMPACTION_CURSOR, {}).get("msgBacklog")
        if backlog:
            state = await self._none_if_refused(get(self.api, f"{topic.rest}/compaction")) or {}
            is_running = state.get("status") == "RUNNING"
            reason = not_compacted(backlog, is_running=is_running)
            told[COMPACTION_CURSOR] = reason.as_json()
        return told

    async def publishing(
        self, topic: TopicPath, stats: Mapping[str, Any]
    ) -> dict[str, dict[str, Any]]:
        """Nothing: no call tells it."""
        return {}

    async def reasons(
        self, topic: TopicPath, stats: Mapping[str, Any]
    ) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
        return await self.explanations(topic, stats), {}

    async def policies(self, topic: TopicPath) -> list[tuple[str, Any, str]]:
        """Two calls for each policy: what holds, and what the topic sets."""
        from magnetar.broker.console.pulsar_policies import row_of, set_policies
        from magnetar.broker.policies.documents import QUOTA_TYPES, QUOTAS
        from magnetar.broker.policies.table import POLICIES

        document = self._none_if_refused(self._document(topic.tenant, topic.namespace))
        space = set_policies(await document, await self.cluster())

        async def one(policy: Policy, at: PolicyRoute) -> Rows:
            path = f"{topic.rest}/{at.path}"
            own = await self._none_if_refused(get(self.api, path))
            applied = own
            if at.applied:
                applied = await self._none_if_refused(get(self.api, path, applied=True))
            return [row_of(at.path, own, applied, space.get(policy.field))]

        async def quotas() -> Rows:
            path = f"{topic.rest}/backlogQuotaMap"
            own = await self._none_if_refused(get(self.api, path)) or {}
            applied = await self._none_if_refused(get(self.api, path, applied=True)) or {}
            below = space.get(QUOTAS) or {}
            return [
                row_of(f"backlogQuota/{kind}", own.get(kind), applied.get(kind), below.get(kind))
                for kind in QUOTA_TYPES
            ]

        def calls() -> Iterator[Awaitable[Rows]]:
            yield from (one(each, each.topic) for each in POLICIES if each.topic is not None)
            yield quotas()

        return [row for found in await self._each(calls()) for row in found]

    async def namespace_policies(self, tenant: str, namespace: str) -> list[tuple[str, Any, str]]:
        """From the namespace's document; what it leaves to the broker has no value."""
        from magnetar.broker.console.pulsar_policies import namespace_rows, set_policies

        document = await self._document(tenant, namespace)
        rows = namespace_rows(set_policies(document, await self.cluster()))
        path = f"namespaces/{segment(tenant)}/{segment(namespace)}"
        return rows + await affinity_rows(self.api, path)

    async def _document(self, tenant: str, namespace: str) -> Any:
        return await get(self.api, f"namespaces/{segment(tenant)}/{segment(namespace)}")

    async def messages(self, topic: TopicPath, query: Mapping[str, str]) -> dict[str, Any]:
        if self._messages is None:
            raise AdminError(501, "Apache Pulsar has no search over REST")
        return await self._messages.search(topic, {**query, **self._masked_query})

    async def deliveries(self, topic: TopicPath, message_id: str) -> Deliveries:
        """As far as cursors tell it."""
        internal, stats = await asyncio.gather(
            get(self.api, f"{topic.rest}/internalStats"), get(self.api, f"{topic.rest}/stats")
        )
        cursors, subscriptions = internal["cursors"], listed_subscriptions(stats)
        names = [
            name
            for name in sorted(
                subscriptions, key=lambda name: -subscriptions[name].get("msgBacklog", 0)
            )
            if name in cursors
        ]
        found = {
            name: delivery_of(cursors[name], subscriptions[name], message_id).as_json()
            for name in names[:DELIVERIES]
        }
        return Deliveries(found, len(names) - len(found))

    def follow(
        self, topic: TopicPath, query: Mapping[str, str]
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        if self._messages is None:
            raise AdminError(501, "REST of Apache Pulsar doesn't tell of new messages")
        return self._messages.follow(topic, {**query, **self._masked_query})

    async def produce(self, delivery: Delivery, schema: TopicSchema | None) -> str:
        if self._messages is None:
            raise AdminError(501, "REST of Apache Pulsar takes texts only")
        return await self._messages.produce(delivery, None if schema is None else schema.version)

    def produce_body(self, delivery: Delivery, schema: TopicSchema | None) -> dict[str, Any] | None:
        """By the rules of Pulsar's REST.

        It takes texts only, gives a topic without a schema the schema STRING, and stores an empty
        value for one that doesn't fit: then there is no call that does the same.
        """
        message = dict(delivery.message)
        if message.keys() & {"encoding", "keyEncoding"} or schema is None:
            return None
        if (at_ms := message.pop("deliverAt", None)) is not None:
            # TopicsBase counts `deliverAfterMs` from the event time, which is 0 if none is given;
            # `deliverAt` it leaves out then.
            message["deliverAt" if "eventTime" in message else "deliverAfterMs"] = at_ms
        if not _fits_rest(delivery, schema):
            return None
        return {"messages": [message], "schemaVersion": schema.version}

    async def connections(self, broker: str, after: str) -> Connections:
        """Those that producers and consumers of the snapshot have; ``after`` is a number."""
        found = (await self._figures()).connections.get(broker, ())
        start = int(after) if after.isascii() and after.isdecimal() and len(after) < 10 else 0
        end = start + CONNECTIONS
        more = str(end) if end < len(found) else ""
        return Connections(list(found[start:end]), len(found), more)

    async def changed_settings(self, broker: str) -> dict[str, str]:
        return dict(await get(self.api.at(broker), "brokers/configuration/values"))

    async def open_transactions(self, after: str, coordinator: int | None) -> OpenTransactions:
        """Of each coordinator Pulsar tells all at once, so not where there are very many."""
        if coordinator is None:
            listed = await self.api.call("GET", f"{TRANSACTIONS}/coordinators")
            numbers = [int(each["id"]) for each in listed]
        else:
            numbers = [coordinator]
        rows, silent, note = list[dict[str, Any]](), dict[str, str](), ""
        for number, found in zip(numbers, await self._each(map(self._slow, numbers)), strict=True):
            if isinstance(found, AdminError):
                if found.status != 404:  # then no client has opened it
                    silent[str(number)] = _message_of(found)
            elif found is None:
                note = f"{note} {number}"
            else:
                rows += found
        rows.sort(key=_place_of)
        behind = [each for each in rows if _place_of(each) > after]
        page = behind[:OPEN]
        more = _place_of(page[-1]) if len(page) < len(behind) else ""
        if note:
            note = f"Of these coordinators too many are open to be listed by Pulsar:{note}."
        return OpenTransactions(page, more, silent, note)

    async def _slow(self, number: int) -> list[dict[str, Any]] | AdminError | None:
        """None: too many are open."""
        query = {"coordinatorId": number}
        try:
            stats = await self.api.call("GET", f"{TRANSACTIONS}/coordinatorStats", query)
            if stats["ongoingTxnSize"] > _OPEN_MAX:
                return None
            found = await self.api.call("GET", f"{TRANSACTIONS}/slowTransactions/0", query)
        except AdminError as error:
            return error
        return [listed_row(each) for each in found.values()]

    async def roles(self, after: str) -> Roles:
        counts: dict[str, dict[str, int]] = {}
        for grant in await self._grants():
            of_role = counts.setdefault(grant["role"], {})
            of_role[grant["source"]] = of_role.get(grant["source"], 0) + 1
        return Roles(counts, [])

    async def role(self, role: str, after: str) -> GrantsOfRole:
        return GrantsOfRole(role, False, [x for x in await self._grants() if x["role"] == role])

    async def _grants(self) -> list[dict[str, Any]]:
        """Of all tenants and namespaces, as the route ``roles/{role}`` has them."""
        tenants = await get(self.api, "tenants")
        infos = await self._each(get(self.api, f"tenants/{segment(each)}") for each in tenants)
        found = [
            {"source": "tenant", "resource": tenant, "role": role}
            for tenant, info in zip(tenants, infos, strict=True)
            for role in info.get("adminRoles") or ()
        ]
        lists = await self._each(get(self.api, f"namespaces/{segment(each)}") for each in tenants)
        for each in await self._each(self._grants_of(name) for some in lists for name in some):
            found += each
        return found

    async def _grants_of(self, namespace: str) -> list[dict[str, Any]]:
        path = "namespaces/" + "/".join(segment(part) for part in namespace.split("/"))
        own = await self._none_if_refused(get(self.api, f"{path}/permissions")) or {}
        some = await self._none_if_refused(get(self.api, f"{path}/permissions/subscription")) or {}
        grants: list[dict[str, Any]] = [
            {"source": "namespace", "resource": namespace, "role": role, "actions": actions}
            for role, actions in own.items()
        ]
        return grants + [
            {"source": "subscription", "resource": namespace, "role": role, "subscription": name}
            for name, roles in some.items()
            for role in roles
        ]

    async def bookie_states(self) -> dict[str, Any]:
        """Names and racks, see ``bookies_note``: ``bookies/all`` has those with a cookie."""
        found, racks = await asyncio.gather(
            get(self.api, "bookies/all"), get(self.api, "bookies/racks-info")
        )
        known = {name: info for group in racks.values() for name, info in group.items()}
        joined = {each["bookieId"] for each in found["bookies"]}
        bookies = [
            {
                "bookieId": name,
                "location": known.get(name, {}).get("rack"),
                "state": None if name in joined else ONLY_A_RACK,
            }
            for name in sorted(joined | known.keys())
        ]
        return {"bookies": bookies, "repair": None}

    async def history(self) -> dict[str, Any]:
        """Pulsar keeps none: it is what this process has seen."""
        found = await self._figures()
        answer = broker_history(self._history.recorder, "all")
        for name in LATENCIES:  # its statistics have none
            del answer["series"][name]
        return {**answer, "brokers": {}, "silentBrokers": dict(found.silent)}

    async def history_of(self, topic: TopicPath) -> dict[str, Any]:
        found = await self._figures()
        name, prefix = str(topic), f"{topic}-partition-"
        topics = [row["topic"] for row in found.topics]
        parts = [each for each in topics if each == name or each.startswith(prefix)]
        recorder = self._history.recorder
        histories = [
            await run_in_turns(topic_history(recorder, part, ())) for part in parts or [name]
        ]
        return await run_in_turns(merged_partitions(histories))

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_S)
            with suppress(AdminError):
                await self._figures()

    async def close(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
            await asyncio.wait({self._taking})

    async def audit(self) -> Changes:
        """Pulsar remembers no changes."""
        return Changes([])

    async def findings(self) -> list[dict[str, Any]]:
        """Silent brokers, and subscriptions that stand still: what ``magnetar doctor`` says too."""
        found = await self._figures()
        if self._checked is None or self._checked[0] is not found:
            self._checked = found, await self._check(found)
        return self._checked[1]

    async def _check(self, found: Snapshot) -> list[dict[str, Any]]:
        suspects = await asyncio.to_thread(suspects_of, found.subscriptions, _BUSY)
        asked = await self._each(self._subscription_facts(row) for row in suspects.busy)
        facts = [each for each in asked if each is not None]
        if (idle := suspects.idle) is not None:
            facts.append(SubscriptionFacts(idle["topic"], idle["subscription"], idle["msgBacklog"]))
        peers = [PeerFacts(name, silence=why) for name, why in found.silent.items()]
        findings = bounded(
            [
                *check_cluster(ClusterFacts(peers, watcher="the console")),
                *check_topics(
                    TopicsFacts(
                        time.time_ns() // 1_000_000, facts, idle=max(0, suspects.idle_count - 1)
                    )
                ),
            ]
        )
        return [each.as_json() for each in findings]

    async def _subscription_facts(self, row: dict[str, Any]) -> SubscriptionFacts | None:
        """Of now: the snapshot is older, and tells no times."""
        topic, name = row["topic"], row["subscription"]
        try:
            stats = await get(self.api, f"{TopicPath.parse(topic).rest}/stats")
        except AdminError:
            return None  # it was just deleted, or its broker is silent, which is a finding itself
        figures = stats["subscriptions"].get(name)
        return None if figures is None else subscription_facts(topic, name, figures)

    async def whoami(self, names: Mapping[str, str], after: str = "") -> dict[str, Any] | None:
        return None

    async def _figures(self) -> Snapshot:
        """The last snapshot, or the first one; an old one is given while the next is taken."""
        snapshot = self._snapshot
        if snapshot is None or self._is_old(snapshot):
            if self._taking is None or self._taking.done():
                self._taking = asyncio.create_task(self._take())
            if snapshot is None:
                return await asyncio.shield(self._taking)
            self._taking.add_done_callback(_look_at_error)
        assert snapshot is not None
        return snapshot

    def _is_old(self, snapshot: Snapshot) -> bool:
        age_s = time.monotonic() - snapshot.as_of_s
        return age_s > max(_FRESH_S, _SHARE * snapshot.took_s)

    async def _take(self) -> Snapshot:
        started_s = time.monotonic()
        names, (stats, silent) = await asyncio.gather(self._names(), self._stats())
        # Sorting 100,000 names takes longer than pages may wait for each other.
        topics, system_topics, subscriptions, connections = await asyncio.to_thread(
            rows_of, names, stats
        )
        self._history.add(time.time_ns() // 1_000_000, topics, subscriptions)
        now_s = time.monotonic()
        took_s = now_s - started_s
        self._snapshot = Snapshot(
            topics, system_topics, subscriptions, now_s, took_s, silent, connections
        )
        return self._snapshot

    async def _names(self) -> list[str]:
        tenants = await get(self.api, "tenants")
        lists = await self._each(get(self.api, f"namespaces/{segment(each)}") for each in tenants)
        namespaces = [name for each in lists for name in each]

        async def of(domain: str, namespace: str) -> list[str]:
            path = "/".join(segment(part) for part in namespace.split("/"))
            return await self._none_if_refused(get(self.api, f"{domain}/{path}")) or []

        found = await self._each(
            of(domain, each) for each in namespaces for domain in ("persistent", "non-persistent")
        )
        return [name for each in found for name in each]

    async def _stats(self) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        """Statistics by broker and topic, and brokers that gave none."""
        found: dict[str, dict[str, Any]] = {}
        silent: dict[str, str] = {}
        clusters = [each for each in await get(self.api, "clusters") if each != "global"]
        for broker in await get(self.api, f"brokers/{segment(clusters[0])}"):
            try:
                answer = await get(self.api.at(broker), "broker-stats/topics")
            except AdminError as error:
                silent[broker] = str(error)
                continue
            served = found[broker] = {}
            for bundles in answer.values():
                for domains in bundles.values():
                    for topics in domains.values():
                        served.update(topics)
        return found, silent

    async def _each(self, calls: Iterable[Awaitable[T]]) -> list[T]:
        """
        Args:
            calls: each is made when its turn comes: one that is never awaited makes Python warn.
        """
        answers, numbered = dict[int, T](), enumerate(calls)

        async def some() -> None:
            while True:
                async with self._limit:
                    if (taken := next(numbered, None)) is None:
                        return
                    answers[taken[0]] = await taken[1]

        await asyncio.gather(*(some() for _ in range(_AT_ONCE)))
        return [answers[number] for number in range(len(answers))]

    async def _none_if_refused(self, call: Awaitable[Any]) -> Any:
        try:
            return await call
        except AdminError as error:
            if error.status >= 500:
                raise
            return None


def _place_of(row: Mapping[str, Any]) -> str:
    """In the order of begins; texts of one length, so that they are ordered as numbers."""
    most, _, least = str(row["txnId"]).strip("()").partition(",")
    return f"{row['openTimestamp']:020}{int(most):010}{int(least):020}"


def _message_of(error: AdminError) -> str:
    """Without the trace that Pulsar adds to an error of its own."""
    text = str(error)
    return (text.partition("Message: ")[2] or text).partition("\n")[0]


def _fits_rest(delivery: Delivery, schema: TopicSchema) -> bool:
    """Whether Pulsar's REST stores the value that the text means."""
    if schema.type in ("NONE", "BYTES", "STRING"):
        return True
    if schema.type in _OWN_FORMS:
        return False
    from magnetar.broker.errors import InvalidSchemaError
    from magnetar.broker.schema.definition import SchemaDefinition
    from magnetar.broker.schema.value_errors import ValueCodecError
    from magnetar.broker.schema.values import codec_of, encode_message

    definition = SchemaDefinition(schema.type, schema.data.encode(), dict(schema.properties))
    try:
        codec = codec_of(definition)
        if codec is None:
            return False
        encode_message(codec, None, delivery.message["payload"])
    except (InvalidSchemaError, ValueCodecError):
        return False
    return True


def _look_at_error(task: asyncio.Task[Snapshot]) -> None:
    """A snapshot that failed is taken again by the next page; the last one is shown until then."""
    if not task.cancelled():
        task.exception()


def _note(found: Snapshot) -> str:
    return f"Figures of all brokers are {span(time.monotonic() - found.as_of_s)} old."
