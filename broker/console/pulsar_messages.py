"""Messages of Apache Pulsar, which has no search over REST: a reader reads its log, and it is
searched here by the code that Magnetar's brokers use.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import orjson

from magnetar.broker.auth.client_auth_error import ClientAuthError
from magnetar.broker.client.cluster_client import ClientAccess, ClusterClient
from magnetar.broker.client.remote_log import RemoteLog
from magnetar.broker.console.admin_api import AdminApi, AdminError, get
from magnetar.broker.console.topic_view import READER_PREFIX
from magnetar.broker.errors import BrokerError
from magnetar.broker.http.messaging.message_filter import FilterError, parse_filter
from magnetar.broker.http.messaging.message_search import MessageSearch, Place, Search, place_of
from magnetar.broker.http.messaging.value_schemas import ValueSchemas
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.schema.definition import StoredSchema, definition_of, version_bytes
from magnetar.managed_ledger.managed_ledger_info import LedgerOffsets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from magnetar.broker.console.topic_path import TopicPath

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
        if topic.domain != "persistent":
            raise AdminError(405, "Search on a non-persistent topic is not allowed")
        try:
            matches = parse_filter(query.get("filter", ""))
            stats = await get(self._api, f"{topic.rest}/internalStats")
            url = self._service_url or await self._broker_url(topic)
            async with ClusterClient(
                url, self._access, client_version="magnetar-console"
            ) as client:
                name = TopicName.parse(str(topic))
                log = RemoteLog(client, name, _offsets(stats), READER_PREFIX)
                start = await self._start(topic, query, log, stats)
                payload = query.get("payload", "cut")
                limit = int(query.get("limit", "50"))
                search = Search(start, limit, matches, payload != "none", payload == "whole")
                schemas = ValueSchemas(_Schemas(client))
                searching = MessageSearch(schemas, name, client.message_bytes_max)
                is_place = query.get("subscription") or _timestamp(query)
                is_last = query.get("position") == "latest" and not is_place
                found = await (searching.last if is_last else searching.run)(log, search)
        except FilterError as error:
            raise AdminError(400, str(error)) from error
        except BrokerError as error:
            raise AdminError(error.http_status, str(error)) from error
        except ClientAuthError as error:
            raise AdminError(401, str(error)) from error
        # In a thread: an answer may be 8 MiB.
        return await asyncio.to_thread(lambda: orjson.loads(orjson.dumps(found.as_json())))

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
        try:
            return place_of(query.get("position", "earliest"), log)
        except ValueError as error:
            raise AdminError(400, str(error)) from error


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
