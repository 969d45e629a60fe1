"""Where pages get what clusters answer differently: of Magnetar here, of others in their own class.

What every Pulsar answers alike, pages ask of ``api`` themselves.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

import orjson

from magnetar.broker.console.admin_api import AdminError, get
from magnetar.broker.console.affinity_row import affinity_rows
from magnetar.broker.console.broker_view import LoadReports
from magnetar.broker.console.draft import produce_path
from magnetar.broker.console.formats import segment
from magnetar.broker.console.kept_order import name_lists
from magnetar.broker.console.subject import topic_stats
from magnetar.broker.console.topic_view import (
    is_part,
    listed_subscriptions,
    opened_names,
)
from magnetar.broker.console.views import row_id

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from contextlib import AbstractAsyncContextManager

    from magnetar.broker.console.admin_api import AdminApi
    from magnetar.broker.console.draft import Delivery
    from magnetar.broker.console.topic_path import TopicPath
    from magnetar.broker.console.topic_view import ClientQuery

T = TypeVar("T")

TRANSACTIONS: Final = "/admin/v3/transactions"
OPEN: Final = 50
"""Transactions of a page."""
CONNECTIONS: Final = 100
"""Of a page."""
DELIVERIES: Final = 20
"""Subscriptions that are asked what became of a message."""
_RETRYABLE: Final = 1
"""``errorCode`` of REST produce."""


@dataclass(frozen=True, slots=True)
class IndexQuery:
    """A page of topics or subscriptions, see the route ``topics-index``."""

    q: str = ""
    namespace: str = ""
    view: str = ""
    sort: str = "topic"
    order: str = ""
    after: str = ""
    limit: int = 50
    grouped: bool = False
    """Whether a partitioned topic is one row; only in the order of names, without a view."""
    points: int = 0
    """Of each row's history."""
    partial: bool = False
    """Whether the first topics will do while all of many are being read."""
    schemas: bool = False
    """Whether rows of topics have the type and the version of their schema."""
    only: str = ""
    """Names of the rows, see the route; empty: all."""

    def given(self) -> dict[str, str | int]:
        """What isn't empty, as parameters of the route."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: value for name, value in values.items() if value}


@dataclass(frozen=True, slots=True)
class StatsLists:
    """What a page shows of a topic besides its figures."""

    subscriptions_max: int
    """At most so many; of a partitioned topic all are there."""
    producers: bool
    partitions: bool
    """Each partition's own statistics."""


@dataclass(frozen=True, slots=True)
class IndexPage:
    rows: list[dict[str, Any]]
    total: int
    matching: int
    next: str = ""
    """``after`` of the page behind it; empty: none."""
    views: dict[str, int] = field(default_factory=dict)
    """How many there are in each view."""
    silent: dict[str, str] = field(default_factory=dict)
    """Brokers that gave no answer, and why."""
    note: str = ""
    """What is different here than was asked for."""
    is_complete: bool = True
    """Whether all topics were read."""
    read: tuple[int, int] = (0, 0)
    """Loaded topics that were read, and all that are loaded."""


@dataclass(frozen=True, slots=True)
class NamespaceSums:
    rows: dict[str, dict[str, Any]]
    """By namespace; of those that have topics."""
    is_complete: bool = True
    read: tuple[int, int] = (0, 0)
    silent: dict[str, str] = field(default_factory=dict)
    """As in ``IndexPage``."""

    def not_loaded(self, namespace: str) -> int:
        """Topics that no broker has loaded: nobody knows their figures. 0 while that isn't known,
        too.
        """
        row = self.rows.get(namespace)
        if row is None or self.silent or not self.is_complete:
            return 0
        count: int = row["topicCount"] - row.get("loadedTopicCount", row["topicCount"])
        return count


@dataclass(frozen=True, slots=True)
class Changes:
    rows: list[dict[str, Any]]
    silent: dict[str, str] = field(default_factory=dict)
    """As in ``IndexPage``."""


@dataclass(frozen=True, slots=True)
class TopicSchema:
    version: int
    type: str
    data: str
    """Its definition."""
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Connections:
    """Clients of one broker."""

    rows: list[dict[str, Any]]
    total: int
    next: str = ""
    """``after`` of the page behind it; empty: none."""


@dataclass(frozen=True, slots=True)
class OpenTransactions:
    """Those that haven't ended, a page of them, the oldest first."""

    rows: list[dict[str, Any]]
    """See the route ``openTransactions``."""
    next: str = ""
    """``after`` of the page behind it; empty: none."""
    silent: Mapping[str, str] = field(default_factory=dict)
    """Coordinators that gave no answer, and why."""
    note: str = ""
    """What is left out."""


@dataclass(frozen=True, slots=True)
class Roles:
    """Those that have grants."""

    counts: Mapping[str, Mapping[str, int]]
    """By role and by what has the grant: ``tenant``, ``namespace``, ``topic``, ``subscription``."""
    superusers: list[str]
    next: str = ""
    """``after`` of the page behind it; empty: none."""


@dataclass(frozen=True, slots=True)
class GrantsOfRole:
    role: str
    is_superuser: bool
    grants: list[dict[str, Any]]
    """See the route ``roles/{role}``."""
    next: str = ""


@dataclass(frozen=True, slots=True)
class Deliveries:
    """What became of a message, by subscription."""

    explained: Mapping[str, Mapping[str, Any]]
    """As the route ``explain`` of a subscription tells it."""
    left_out: int
    """Subscriptions of the topic that weren't asked."""


class Source:
    """A cluster of Magnetar."""

    product = "Magnetar"
    roles_note = ""
    """What isn't told of grants."""
    lists_schemas = True
    """Whether a call tells which topics have a schema."""
    audit_note = "Nothing was changed that the brokers remember."
    """Of an audit without changes."""
    remembers_changes = True
    """Whether brokers log and keep who changed what, see ``audit``."""
    bookies_note = ""
    """What isn't told of bookies, and by whom."""
    settings_note = ""
    """What isn't told of changed settings."""

    def __init__(
        self, api: AdminApi, load_reports: LoadReports | None = None, masked_fields: str = ""
    ) -> None:
        """
        Args:
            load_reports: what brokers told before; None: nothing yet.
            masked_fields: as the setting ``webConsoleMaskedFields``.
        """
        self.api = api
        self.load_reports = load_reports or LoadReports()
        self.masked = _masked(masked_fields)
        """Fields of messages whose values are never read."""
        self._masked_query = {"masked": ",".join(sorted(self.masked))} if self.masked else {}

    async def cluster(self) -> str:
        """Its name. Raises AdminError."""
        found = await get(self.api, "clusters")
        return next((each for each in found if each != "global"), "")

    async def addresses(self) -> dict[str, str]:
        """URLs for clients and for HTTP. Raises AdminError."""
        found = await get(self.api, f"clusters/{segment(await self.cluster())}")
        return {
            "service_url": found.get("brokerServiceUrl") or "?",
            "web_url": found.get("serviceUrl") or "?",
        }

    async def topics(self, query: IndexQuery) -> IndexPage:
        """Raises AdminError."""
        return _page(await get(self.api, "topics-index", **query.given()), "topics")

    async def subscriptions(self, query: IndexQuery) -> IndexPage:
        """Of all loaded topics. Raises AdminError."""
        return _page(await get(self.api, "subscriptions-index", **query.given()), "subscriptions")

    async def schemas(self, query: IndexQuery) -> IndexPage:
        """Topics that have a schema, in the order of names, see the route ``schemas-index``.

        Raises:
            AdminError.
        """
        names = ("q", "namespace", "after", "limit")
        given = {name: value for name, value in query.given().items() if name in names}
        return _page(await get(self.api, "schemas-index", **given), "schemas")

    async def _count_of_schemas(self) -> dict[str, int]:
        """For ``counts``. Raises AdminError."""
        return {"schemas": (await self.schemas(IndexQuery(limit=1))).total}

    async def namespaces(self, *, partial: bool = False) -> NamespaceSums:
        """Sums of topics' figures. Raises AdminError.

        Args:
            partial: whether the first topics will do while all of many are being read.
        """
        query = {"partial": True} if partial else {}
        found = await get(self.api, "namespaces-index", **query)
        silent = found.get("silentBrokers", {})
        return NamespaceSums(found["namespaces"], found.get("complete", True), _read(found), silent)

    async def counts(self) -> dict[str, int]:
        """How many there are of what the menu leads to, by its keys.

        What the visitor may not see is left out, and topics while they are still being read.
        """

        async def each(call: Awaitable[T], read: Callable[[T], dict[str, int]]) -> dict[str, int]:
            try:
                return read(await call)
            except AdminError:  # not for everybody, or silent
                return {}

        async def brokers() -> list[str]:
            return list(await get(self.api, f"brokers/{segment(await self.cluster())}"))

        found = await asyncio.gather(
            each(brokers(), lambda names: {"brokers": len(names)}),
            each(get(self.api, "bookies/all"), lambda found: {"bookies": len(found["bookies"])}),
            each(self.namespaces(partial=True), _counts_of_sums),
            each(self._count_of_schemas(), dict),
            each(
                self.topics(IndexQuery(limit=1, grouped=True, partial=True)),
                lambda page: {"topics": page.total} if page.is_complete else {},
            ),
        )
        return {key: count for counts in found for key, count in counts.items()}

    async def topic_stats(
        self, topic: TopicPath, query: ClientQuery, lists: StatsLists
    ) -> tuple[int, dict[str, Any]]:
        """How many partitions there are, and statistics as ``subject.topic_stats``.

        Of a topic without partitions: only the subscriptions that are furthest behind, and those
        that ``query`` names; no consumers, see ``add_consumers``.

        Raises:
            AdminError.
        """
        part = {"excludeConsumers": True, "excludePublishers": not lists.producers}
        named = orjson.dumps([query.opened] if query.opened else []).decode()
        partitions, stats = await topic_stats(
            self.api,
            topic,
            per_partition=lists.partitions,
            subscriptionsMax=lists.subscriptions_max,
            subscriptions=named,
            **part,
        )
        found = stats["subscriptions"]
        if not partitions and query.shown is not None:
            for names in query.shown.missing({row_id(name) for name in found}):
                _, more = await topic_stats(self.api, topic, subscriptions=names, **part)
                found |= more["subscriptions"]
        return partitions, stats

    async def add_consumers(
        self,
        topic: TopicPath,
        stats: Mapping[str, Any],
        explanations: Mapping[str, Mapping[str, Any]],
        query: ClientQuery,
    ) -> None:
        """Of the subscriptions that a page shows open, where ``topic_stats`` has left them out.

        Raises:
            AdminError.
        """
        if not is_part(stats):
            return
        for names in name_lists(opened_names(stats, explanations, query)):
            found = await get(
                self.api, f"{topic.rest}/stats", subscriptions=names, excludePublishers=True
            )
            for name, each in found["subscriptions"].items():
                stats["subscriptions"][name]["consumers"] = each["consumers"]

    async def explanations(
        self, topic: TopicPath, stats: Mapping[str, Any]
    ) -> dict[str, dict[str, Any]]:
        """Why each subscription delivers nothing now, or that it does; see ``reasons``.

        Args:
            stats: of the topic, for clusters that tell no more; of a part of its subscriptions
                only those are told of.
        Raises:
            AdminError.
        """
        if is_part(stats):
            path, told = f"{topic.rest}/explain", dict[str, dict[str, Any]]()
            for names in name_lists(stats["subscriptions"]):
                told |= await get(self.api, path, subscriptions=names)
            return told
        return dict(await get(self.api, f"{topic.rest}/explain"))

    async def publishing(
        self, topic: TopicPath, stats: Mapping[str, Any]
    ) -> dict[str, dict[str, Any]]:
        """Why nothing is published now, by partition; "": of the topic. Raises AdminError.

        Args:
            stats: of the topic.
        """
        found = await get(self.api, f"{topic.rest}/explain/publishing")
        return dict(found) if "partitions" in stats else {"": found}

    async def reasons(
        self, topic: TopicPath, stats: Mapping[str, Any]
    ) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
        """As ``explanations`` and ``publishing``; of a topic with partitions the worst.

        Args:
            stats: of the topic.
        Raises:
            AdminError.
        """
        if "partitions" not in stats:
            return await asyncio.gather(
                self.explanations(topic, stats), self.publishing(topic, stats)
            )
        found = await get(self.api, f"{topic.rest}/explain/worst")
        publishing = found["publishing"]
        return found["subscriptions"], {} if publishing is None else {"": publishing}

    async def policies(self, topic: TopicPath) -> list[tuple[str, Any, str]]:
        """Name, value in force and who sets it. Raises AdminError."""
        found = await get(self.api, f"{topic.rest}/policies", applied=True)
        return [(name, each.get("value"), each.get("source", "")) for name, each in found.items()]

    async def namespace_policies(self, tenant: str, namespace: str) -> list[tuple[str, Any, str]]:
        """As ``policies``, of a namespace. Raises AdminError."""
        path = f"namespaces/{segment(tenant)}/{segment(namespace)}"
        found = await get(self.api, f"{path}/policies", applied=True)
        rows = [(name, each.get("value"), each.get("source", "")) for name, each in found.items()]
        return rows + await affinity_rows(self.api, path)

    async def messages(self, topic: TopicPath, query: Mapping[str, str]) -> dict[str, Any]:
        """Stored messages, see the route ``messages`` of a topic. Raises AdminError."""
        return dict(
            await get(self.api, f"{topic.rest}/messages", **{**query, **self._masked_query})
        )

    async def deliveries(self, topic: TopicPath, message_id: str) -> Deliveries:
        """Of the subscriptions that are furthest behind.

        Args:
            topic: that has no partitions, or is one.
            message_id: ``ledger:entry``, in a batch with its place there.
        Raises:
            AdminError.
        """
        stats = await get(
            self.api, f"{topic.rest}/stats", excludePublishers=True, excludeConsumers=True
        )
        found = listed_subscriptions(stats)
        names = sorted(found, key=lambda name: (-found[name].get("msgBacklog", 0), name))
        ledger_id, entry_id, *index = message_id.split(":")
        full_id = ":".join((ledger_id, entry_id, "-1", *index))

        async def one(name: str) -> Any:
            path = f"{topic.rest}/subscription/{segment(name)}/explain"
            try:
                return await get(self.api, path, messageId=full_id)
            except AdminError as error:
                if error.status == 404:  # it was just removed
                    return None
                raise

        asked = names[:DELIVERIES]
        answers = zip(asked, await asyncio.gather(*map(one, asked)), strict=True)
        return Deliveries({name: each for name, each in answers if each}, len(names) - len(asked))

    def follow(
        self, topic: TopicPath, query: Mapping[str, str]
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """New messages, see the route ``messages/follow`` of a topic. Raises AdminError."""
        masked = {**query, **self._masked_query}
        return self.api.stream(f"/admin/v2/{topic.rest}/messages/follow", masked)

    def produce_body(self, delivery: Delivery, schema: TopicSchema | None) -> dict[str, Any] | None:
        """Of the call over HTTP that produces a message; None: none does.

        Args:
            schema: what the value is encoded by; None: the topic has none.
        """
        given: dict[str, Any] = {"messages": [delivery.message]}
        if schema is None:  # else REST would give the topic one: STRING
            return given | {"valueSchema": '{"type":"BYTES"}'}
        return given | {"schemaVersion": schema.version}

    async def produce(self, delivery: Delivery, schema: TopicSchema | None) -> str:
        """The message's id, ``ledger:entry:partition``. Raises AdminError."""
        body = self.produce_body(delivery, schema)
        found = await self.api.call("POST", produce_path(delivery), body=body)
        (result,) = found["messagePublishResults"]
        if result["errorCode"]:
            status = 503 if result["errorCode"] == _RETRYABLE else 400
            raise AdminError(status, result.get("errorMsg", "the message isn't stored"))
        return str(result["messageId"])

    async def schema(self, topic: TopicPath, version: int | None) -> TopicSchema | None:
        """That version of a topic's schema, None: the latest; None: there is none.

        Raises:
            AdminError: 404 no such version.
        """
        tail = "" if version is None else f"/{version}"
        try:
            found = await get(self.api, f"{schema_path(topic)}/schema{tail}")
        except AdminError as error:
            if error.status != 404 or version is not None:
                raise
            return None
        return TopicSchema(found["version"], found["type"], found["data"], found["properties"])

    async def connections(self, broker: str, after: str) -> Connections:
        """Clients that are connected to a broker, a page of them. Raises AdminError."""
        found = await get(
            self.api.at(broker), "broker-stats/connections", limit=CONNECTIONS, after=after
        )
        return Connections(found["connections"], found["count"], found["next"] or "")

    async def changed_settings(self, broker: str) -> dict[str, str]:
        """Settings of a broker that differ from their defaults. Raises AdminError."""
        found = await get(self.api.at(broker), "brokers/configuration/runtime", changed=True)
        return dict(found)

    async def open_transactions(self, after: str, coordinator: int | None) -> OpenTransactions:
        """
        Args:
            coordinator: only those of it; None: of all.
        Raises:
            AdminError.
        """
        query: dict[str, str | int] = {"limit": OPEN, "after": after}
        query |= {} if coordinator is None else {"coordinatorId": coordinator}
        found = await self.api.call("GET", f"{TRANSACTIONS}/openTransactions", query)
        return OpenTransactions(found["transactions"], found["next"] or "")

    async def roles(self, after: str) -> Roles:
        """A page of the roles that have grants. Raises AdminError."""
        found = await get(self.api, "roles", after=after)
        return Roles(found["roles"], found["superUserRoles"], found["next"] or "")

    async def role(self, role: str, after: str) -> GrantsOfRole:
        """A page of the grants of a role. Raises AdminError."""
        found = await get(self.api, f"roles/{segment(role)}", after=after)
        return GrantsOfRole(role, found["superuser"], found["grants"], found["next"] or "")

    async def bookie_states(self) -> dict[str, Any]:
        """Bookies and auto-recovery, see the route ``bookies/state``. Raises AdminError."""
        return dict(await get(self.api, "bookies/state"))

    async def history(self) -> dict[str, Any]:
        """Totals of all brokers, see the route ``history``. Raises AdminError."""
        return dict(await get(self.api, "history"))

    async def history_of(self, topic: TopicPath) -> dict[str, Any]:
        """See the route ``history`` of a topic, without its subscriptions. Raises AdminError."""
        return dict(await get(self.api, f"{topic.rest}/history", subscriptions=False))

    async def watch(self) -> None:
        """Do what has to be done all the time, for a console that runs: nothing here."""

    async def close(self) -> None:
        """End what is being read for pages to come: nothing here."""

    async def audit(self) -> Changes:
        """The last changes over HTTP, see the route ``audit``. Raises AdminError."""
        found = await get(self.api, "audit", limit=200)
        return Changes(found["changes"], found["failed"])

    async def findings(self) -> list[dict[str, Any]]:
        """What needs attention, the worst first, see the route ``doctor``. Raises AdminError."""
        return list((await get(self.api, "doctor"))["findings"])

    async def whoami(self, names: Mapping[str, str], after: str = "") -> dict[str, Any] | None:
        """Who looks and what he may do, see the route ``whoami``. None: the cluster doesn't tell.

        Args:
            names: what his rights are asked of, by ``tenant``, ``namespace`` and ``topic``.
            after: only tenants behind it.
        Raises:
            AdminError: 412 a name can't be one.
        """
        return dict(await get(self.api, "whoami", **names, after=after))

    async def visitor(self) -> dict[str, str] | None:
        """Role and rank of who looks. None: nobody was asked who he is. Raises AdminError."""
        found = await self.whoami({})
        if found is None or not found["authenticationEnabled"]:
            return None
        rank = "superuser" if found["superuser"] else "tenant admin" if found["adminOf"] else ""
        return {"role": found["role"] or "anonymous", "rank": rank}


def _counts_of_sums(sums: NamespaceSums) -> dict[str, int]:
    if not sums.is_complete:
        return {}
    rows = sums.rows.values()
    subscriptions = sum(each.get("subscriptionCount") or 0 for each in rows)
    return {"namespaces": len(rows), "subscriptions": subscriptions}


def _page(found: dict[str, Any], rows: str) -> IndexPage:
    return IndexPage(
        found[rows],
        found["total"],
        found["matching"],
        found.get("next") or "",
        found.get("views", {}),
        found.get("silentBrokers", {}),
        is_complete=found.get("complete", True),
        read=_read(found),
    )


def _read(found: Mapping[str, Any]) -> tuple[int, int]:
    return found.get("topicsRead", 0), found.get("topicsLoaded", 0)


def schema_path(topic: TopicPath) -> str:
    """Of the routes about a topic's schema, below ``/admin/v2``."""
    names = (topic.tenant, topic.namespace, topic.local)
    return "schemas/" + "/".join(segment(name) for name in names)


def _masked(fields: str) -> frozenset[str]:
    if not fields:
        return frozenset()
    from magnetar.broker.http.messaging.message_mask import names_of  # `magnetar top` needs none

    return frozenset(names_of(fields))
