"""Messages of Apache Pulsar, which has no search over REST: a reader reads its log, and it is
searched here by the code that Magnetar's brokers use. They are produced by the same protocol.
"""

from __future__ import annotations

import asyncio
from contextlib import (
    AbstractAsyncContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import orjson

from magnetar.broker.auth.client_auth_error import ClientAuthError
from magnetar.broker.client.cluster_client import ClientAccess, ClusterClient
from magnetar.broker.client.remote_log import RemoteLog
from magnetar.broker.console.admin_api import AdminApi, AdminError, get
from magnetar.broker.console.pulsar_produce import publish
from magnetar.broker.console.subject import partition_count
from magnetar.broker.console.topic_path import TopicPath
from magnetar.broker.console.topic_view import READER_PREFIX
from magnetar.broker.errors import BrokerError
from magnetar.broker.http.messaging.message_filter import (
    FilterError,
    MessageFilter,
    parse_filter,
)
from magnetar.broker.http.messaging.message_follow import (
    ALIVE_S,
    MESSAGES_PER_S,
    follow_steps,
    lines_of,
)
from magnetar.broker.http.messaging.message_mask import names_of
from magnetar.broker.http.messaging.message_search import (
    BEGINNING,
    PAYLOADS,
    MessageSearch,
    Place,
    Search,
    place_of,
)
from magnetar.broker.http.messaging.value_schemas import ValueSchemas
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.schema.definition import StoredSchema, definition_of, version_bytes
from magnetar.managed_ledger.managed_ledger_info import LedgerOffsets

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping

    from magnetar.broker.console.draft import Delivery

_VERSION: Final = "magnetar-console"
"""What brokers are told of their client."""


class PulsarMessages:
    """The route ``messages`` of a topic, for clusters that haven't got it."""

    def __init__(
        self, api: AdminApi, access: ClientAccess, service_url: str, *, over_tls: bool
    ) -> None:
        """
        Args:
            service_url: where brokers speak the binary protocol; "": as the cluster tells it.
            over_tls: whether an address that the cluster tells must be one for TLS.
        """
        self._api, self._access, self._service_url = api, access, service_url
        self._over_tls = over_tls

    async def search(self, topic: TopicPath, query: Mapping[str, str]) -> dict[str, Any]:
        """As the route answers. Raises AdminError."""
        with _told():
            matches = parse_filter(query.get("filter", ""))
            is_compacted = query.get("readCompacted") == "true"
            async with self._log(topic, is_compacted=is_compacted) as found:
                start = await self._start(topic, query, found.log, found.stats)
                search = _search(start, matches, query)
                is_place = query.get("subscription") or _timestamp(query)
                is_last = query.get("position") == "latest" and not is_place
                if before := query.get("before"):
                    is_last, search = True, replace(search, end=_place_of(before, found.log))
                searching = found.searching
                answer = await (searching.last if is_last else searching.run)(found.log, search)
        # In a thread: an answer may be 8 MiB.
        return await asyncio.to_thread(lambda: orjson.loads(orjson.dumps(answer.as_json())))

    @asynccontextmanager
    async def follow(
        self, topic: TopicPath, query: Mapping[str, str]
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """As the route ``messages/follow``. Raises AdminError, also from the pieces."""
        with _told():
            matches = parse_filter(query.get("filter", ""))
            async with self._log(topic, is_followed=True) as found:
                if query.get("position", "latest") == "latest":
                    ledger_id, entry_id = map(int, found.stats["lastConfirmedEntry"].split(":"))
                    start = Place((ledger_id, entry_id + 1))
                else:
                    start = await self._start(topic, query, found.log, found.stats)
                await found.log.open(start.position)
                search = _search(start, matches, query)
                steps = follow_steps(_Followed(found.log), found.searching, search, ALIVE_S)
                yield _told_pieces(lines_of(steps, events=False))

    async def produce(self, delivery: Delivery, schema_version: int | None) -> str:
        """The message's id, ``ledger:entry:partition``. Raises AdminError.

        Args:
            schema_version: what the value is encoded by; None: the topic has no schema.
        """
        url = self._service_url or await self._broker_url(delivery.topic)
        with _told():
            async with ClusterClient(url, self._access, client_version=_VERSION) as client:
                definition = None
                if schema_version is not None:
                    name = TopicName.parse(str(delivery.topic))
                    stored = await _Schemas(client).get(name, schema_version)
                    definition = None if stored is None else stored.definition
                return await publish(client, delivery, definition)

    @asynccontextmanager
    async def _log(
        self, topic: TopicPath, *, is_followed: bool = False, is_compacted: bool = False
    ) -> AsyncIterator[_OpenedLog]:
        """With connections of its own, which end with it. Raises AdminError, BrokerError."""
        if topic.domain != "persistent":
            raise AdminError(405, "Search on a non-persistent topic is not allowed")
        stats = await self._internal_stats(topic)
        url = self._service_url or await self._broker_url(topic)
        async with ClusterClient(url, self._access, client_version=_VERSION) as client:
            name = TopicName.parse(str(topic))
            log = RemoteLog(
                client,
                name,
                _offsets(stats),
                READER_PREFIX,
                is_followed=is_followed,
                is_compacted=is_compacted,
            )
            schemas = ValueSchemas(_Schemas(client))
            searching = MessageSearch(schemas, name, client.message_bytes_max)
            yield _OpenedLog(log, searching, stats)

    async def _internal_stats(self, topic: TopicPath) -> Mapping[str, Any]:
        """Raises AdminError."""
        try:
            found: Mapping[str, Any] = await get(self._api, f"{topic.rest}/internalStats")
        except AdminError as error:
            name = TopicName.parse(str(topic))
            whole = TopicPath.parse(str(name.base))
            if (
                error.status != 404
                or not name.is_partition
                or await partition_count(self._api, whole) <= name.partition_index
            ):
                raise
            why = "stores nothing: no client has used it since it was made, or since it was deleted"
            raise AdminError(404, f"Partition {name.partition_index} {why}") from error
        return found

    async def _broker_url(self, topic: TopicPath) -> str:
        """Of the topic's broker. Raises AdminError."""
        found = await self._api.call("GET", f"/lookup/v2/topic/{topic.rest}")
        names = ("brokerUrlTls", "brokerUrlSsl") if self._over_tls else ("brokerUrl",)
        url = next((found[name] for name in names if found.get(name)), "")
        if not url:
            raise AdminError(503, f"the cluster tells no {names[0]}: give --url")
        return str(url)

    async def _start(
        self, topic: TopicPath, query: Mapping[str, str], log: RemoteLog, stats: Mapping[str, Any]
    ) -> Place:
        """Raises AdminError: 404 no such subscription, 400 no such position."""
        if subscription := query.get("subscription"):
            if (cursor := stats["cursors"].get(subscription)) is None:
                raise AdminError(404, f"Subscription {subscription} not found")
            ledger_id, entry_id = map(int, cursor["markDeletePosition"].split(":"))
            return Place((ledger_id, entry_id + 1))
        if timestamp := _timestamp(query):
            found = await get(self._api, f"{topic.rest}/messageid/{timestamp}")
            return Place((found["ledgerId"], found["entryId"]))
        if query.get("readCompacted") == "true" and query.get("position") == "earliest":
            return BEGINNING
        return _place_of(query.get("position", "earliest"), log)


def _place_of(position: str, log: RemoteLog) -> Place:
    try:
        return place_of(position, log)
    except ValueError as error:
        raise AdminError(400, str(error)) from error


@dataclass(frozen=True, slots=True)
class _OpenedLog:
    log: RemoteLog
    searching: MessageSearch
    stats: Mapping[str, Any]
    """``internalStats`` of the topic."""


class _Followed:
    """What `follow_steps` wants of a log of Pulsar."""

    def __init__(self, log: RemoteLog) -> None:
        self.log, self.news = log, log.came

    def is_over(self) -> bool:
        return False  # a topic that moves is found again by the next reading

    def turn(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()  # no broker waits for this process

    def behind(self, place: Place) -> tuple[Place, int]:
        """What was taken from the log and not looked at is skipped; the broker has the rest."""
        (ledger_id, entry_id), at = self.log.next, place.position
        skipped = entry_id - at[1] - bool(place.index) if ledger_id == at[0] else 0
        return Place(self.log.next), max(0, skipped)


def _search(start: Place, matches: MessageFilter, query: Mapping[str, str]) -> Search:
    payload, masked = query.get("payload", "cut"), names_of(query.get("masked", ""))
    limit = int(query.get("limit", str(MESSAGES_PER_S)))
    is_raw = query.get("raw") == "true"
    return Search(start, limit, matches, payload != "none", PAYLOADS[payload], is_raw, masked)


@contextmanager
def _told() -> Iterator[None]:
    """Failures as an `AdminApi` has them."""
    try:
        yield
    except FilterError as error:
        raise AdminError(400, str(error)) from error
    except BrokerError as error:
        raise AdminError(error.http_status, str(error)) from error
    except ClientAuthError as error:
        raise AdminError(401, str(error)) from error


async def _told_pieces(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    with _told():
        async for each in pieces:
            yield each


def _timestamp(query: Mapping[str, str]) -> int:
    """Publish time, ms; 0: none is asked for."""
    return int(query.get("timestamp", "0"))


def _offsets(stats: Mapping[str, Any]) -> LedgerOffsets:
    """Of ``internalStats``: the ledger that is written has its entries beside the list."""
    rows = [(each["ledgerId"], each["entries"]) for each in stats["ledgers"]]
    if rows:
        ledger_id, entries = rows[-1]
        rows[-1] = ledger_id, entries or stats["currentLedgerEntries"]
    return LedgerOffsets(rows)


class _Schemas:
    """`KnownSchemas` of one search: versions that were asked for are kept."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._found: dict[int, StoredSchema | None] = {}

    async def get(self, name: TopicName, version: int) -> StoredSchema | None:
        if version not in self._found:
            found = await self._client.schema(str(name), version_bytes(version))
            definition = None if found is None else definition_of(found)
            stored = None if definition is None else StoredSchema(version, 0, definition)
            self._found[version] = stored
        return self._found[version]

    async def in_thread(self, work: Callable[[], Any]) -> Any:
        return await asyncio.to_thread(work)

    async def in_value_thread(self, work: Callable[[], Any]) -> Any:
        return await asyncio.to_thread(work)
