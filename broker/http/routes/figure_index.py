"""Topics, subscriptions and namespaces with their figures: sorted, filtered, a page at a time.

Magnetar's own. ``broker/index`` has the figures; nothing is kept before the first of these calls.
"""

from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal, TypeVar
from urllib.parse import parse_qsl, urlencode

import orjson
from starlette.requests import Request
from starlette.responses import Response

from magnetar.broker.auth.authorization import Caller
from magnetar.broker.cluster.broker_client import BrokerCall
from magnetar.broker.http.dependencies import Flag, Service, flag
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.parameters import Depends, Query
from magnetar.broker.http.responses import JsonResponse
from magnetar.broker.http.routing.route import Access, Routes, RoutingMode
from magnetar.broker.http.routing.scatter_gather import ScatterGather, Spread
from magnetar.broker.http.routing.visitors import sight_of, visitor_of
from magnetar.broker.http.streamed_answers import long_json
from magnetar.broker.index.broker_index import IndexTables
from magnetar.broker.index.figure_table import (
    UNLOADED,
    UNLOADED_HERE,
    FigureTable,
    PageQuery,
    Sight,
    subscription_key,
)
from magnetar.broker.index.page_answer import (
    PageAnswer,
    Row,
    merged,
    merged_sums,
    parse_key,
    read_json,
    read_of,
    read_together,
)
from magnetar.broker.index.topic_figures import SubscriptionField, TopicField
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.service.broker_service import BrokerService
from magnetar.metadata.loop_turns import in_turns, next_turn, run_in_turns

routes = Routes(
    "/admin/v2",
    tag="index",
    access=Access.FREE,
    mode=RoutingMode.LOCAL,
    statuses={503: "The names of topics can't be read now"},
)

T = TypeVar("T")

_LIMIT_MAX: Final = 1_000
_POINTS_MAX: Final = 60
_ANSWER_S: Final = 2.0
"""Until another broker is named as silent."""
_TOPIC: Final = {
    "topic": "persistent://public/default/orders",
    "broker": "127.0.0.1:8080",
    "msgRateIn": 122.5,
    "msgRateOut": 366.0,
    "msgThroughputIn": 61250.0,
    "msgThroughputOut": 183000.0,
    "msgBacklog": 1284310,
    "maxMsgBacklog": 1284000,
    "earliestMsgPublishTimeInBacklogs": 1795856000000,
    "storageSize": 212000000,
    "producerCount": 6,
    "consumerCount": 9,
    "subscriptionCount": 4,
    "msgBacklogTrend": -122.5,
    "idleSince": 1795867259000,
    "backlogQuotaUsage": 0.61,
    "catchUpSeconds": 10484,
}
_SUBSCRIPTION: Final = {
    "topic": "persistent://public/default/orders",
    "subscription": "billing",
    "type": "Shared",
    "broker": "127.0.0.1:8080",
    "msgRateOut": 0.0,
    "msgThroughputOut": 0.0,
    "msgBacklog": 1284000,
    "msgBacklogTrend": -122.5,
    "catchUpSeconds": 10481,
    "earliestMsgPublishTimeInBacklog": 1795856000000,
    "unackedMessages": 100000,
    "consumerCount": 2,
}
_AROUND: Final = {
    "asOf": 1795867260000,
    "total": 12408,
    "matching": 318,
    "next": "-1795856000000.0:persistent://public/default/orders",
    "complete": True,
    "topicsRead": 12408,
    "topicsLoaded": 12408,
    "silentBrokers": {},
}

TopicView = Literal[
    "backlog", "unconsumed", "active", "noSubscription", "notLoaded", "idle", "nearQuota"
]
SubscriptionView = Literal["backlog", "unconsumed", "growing"]
_SORT: Final = "The name, or a figure; equal ones are in the order of names"


@dataclass(frozen=True, slots=True)
class Asked:
    """Which page of a list: what both lists have."""

    text: str
    order: str | None
    after: str | None
    limit: int
    namespace: str
    points: int
    only: frozenset[Hashable] | None

    def query(
        self, sort: str, view: str | None, place_max: int, *, grouped: bool = False
    ) -> PageQuery:
        """``sort``: a figure, or "topic".

        Raises:
            ApiError: 400 ``after`` is of another order, or partitions can't be one row in it.
        """
        figure = "" if sort == "topic" else sort
        if grouped and (figure or view or self.only is not None):
            raise ApiError(400, "grouped: only in the order of names, without `view` and `only`")
        try:
            key = None if self.after is None else parse_key(self.after, figure)
        except ValueError as error:
            raise ApiError(400, f"after: {error}") from error
        return PageQuery(
            figure,
            bool(figure) if self.order is None else self.order == "desc",
            key,
            self.limit,
            self.text.lower(),
            self.namespace,
            view or "",
            place_max,
            self.points,
            grouped,
            self.only,
        )


# Dependencies are coroutine functions, so no class.


async def _asked(
    q: Annotated[str, Query(description="A part of the name, in any case of letters")] = "",
    order: Annotated[
        Literal["asc", "desc"] | None,
        Query(description="`asc` for names and `desc` for figures if left out"),
    ] = None,
    after: Annotated[str | None, Query(description="`next` of the page before")] = None,
    limit: Annotated[int, Query(ge=1, le=_LIMIT_MAX, description="Rows of a page")] = 50,
    namespace: Annotated[
        str, Query(description="Only of this one, `tenant/namespace`, or of a tenant")
    ] = "",
    points: Annotated[
        int | None,
        Query(ge=2, le=_POINTS_MAX, description="Of each row's `history`"),
    ] = None,
    only: Annotated[
        str | None,
        Query(
            description="Only these rows: a JSON array of names of topics, or of arrays of a topic"
            " and a subscription; others count nowhere in the answer"
        ),
    ] = None,
) -> Asked:
    return Asked(q, order, after, limit, namespace, points or 0, _keys_of(only))


def _keys_of(text: str | None) -> frozenset[Hashable] | None:
    """Of rows, by the parameter ``only``. Raises ApiError."""
    if text is None:
        return None
    try:
        found = orjson.loads(text)
        keys = frozenset(
            subscription_key(*each) if isinstance(each, list) else each for each in found
        )
    except (orjson.JSONDecodeError, TypeError) as error:
        raise ApiError(400, f"only: {error}") from error
    if len(keys) > _LIMIT_MAX:
        raise ApiError(400, f"only: more than {_LIMIT_MAX} rows")
    return keys


_Asked = Annotated[Asked, Depends(_asked)]


class Visitor:
    """Whose rights count in a request."""

    def __init__(self, service: BrokerService, caller: Caller | None) -> None:
        self.service, self.caller = service, caller

    def parameters(self) -> list[tuple[str, str]]:
        """For other brokers, which this one asks as itself."""
        caller = self.caller
        if caller is None:
            return []
        original = () if caller.original is None else (("originalRole", caller.original),)
        return [("role", caller.role or ""), *original]

    async def sight(self, table: FigureTable) -> Sight | None:
        if self.caller is None:
            return None
        assert self.service.access is not None
        return await sight_of(self.service.access, self.caller, table.space_names)


async def _visitor(
    request: Request,
    service: Service,
    role: Annotated[
        str | None, Query(description="What this role may see; of superusers' calls")
    ] = None,
    originalRole: Annotated[
        str | None, Query(description="For whom that role, a proxy, speaks")
    ] = None,
) -> Visitor:
    return Visitor(service, visitor_of(request, role, originalRole))


class Everywhere:
    """Asks the other brokers of the cluster the same, for what they serve."""

    def __init__(
        self, request: Request, spread: ScatterGather, visitor: Visitor, *, is_local: bool
    ) -> None:
        """``is_local``: nobody else is asked, and only topics of this broker's bundles count."""
        self._request, self._spread, self.visitor = request, spread, visitor
        self._is_local = is_local
        self.place_max = UNLOADED_HERE if is_local else UNLOADED

    async def ask(self, here: Callable[[], Awaitable[T]]) -> tuple[list[T | Any], dict[str, str]]:
        """This broker's answer, the JSON of others', and why which ones gave none."""
        if self._is_local or self.visitor.service.sharing is None:
            return [await here()], {}
        scope = self._request.scope
        kept = [
            pair
            for pair in parse_qsl(scope["query_string"].decode("latin-1"))
            if pair[0] not in ("role", "originalRole")
        ]
        asked = urlencode([*kept, *self.visitor.parameters(), ("local", "true")])
        call = BrokerCall("GET", scope["path"], asked)
        found = await self._spread.brokers(here, call, answer_s=_ANSWER_S)
        if not found.values:
            found.check()
        return found.values, found.failures()

    async def page(
        self,
        rows_name: str,
        query: PageQuery,
        here: Callable[[], Awaitable[PageAnswer]],
        more: Callable[[Row], Awaitable[Row]] | None = None,
    ) -> Response:
        """``more``: what a row gets, once those of all brokers are put together."""
        found, silent = await self.ask(here)
        pages = [
            each if isinstance(each, PageAnswer) else PageAnswer.of_json(each, rows_name)
            for each in found
        ]
        page = pages[0] if len(pages) == 1 else merged(pages, query)
        if more is not None and not self._is_local:
            # One after the other: a large history is decoded in a thread of which there are few.
            page = replace(
                page, rows=[{**row, **await more(row)} async for row in in_turns(page.rows)]
            )
            await next_turn()
        return JsonResponse(page.to_json(rows_name, query, silent))


async def _everywhere(
    request: Request,
    spread: Spread,
    visitor: Annotated[Visitor, Depends(_visitor)],
    local: Annotated[
        str | None, Flag(False, "`true`: only topics of the asked broker's bundles")
    ] = None,
) -> Everywhere:
    return Everywhere(request, spread, visitor, is_local=flag(local))


_Everywhere = Annotated[Everywhere, Depends(_everywhere)]


async def _tables(
    service: Service,
    partial: Annotated[
        str | None,
        Flag(
            False,
            "`true`: what is known so far will do while all of many topics are being looked at, as"
            " after a minute in which nobody has asked; `complete` is false then, and `topicsRead`"
            " of `topicsLoaded` have their figures",
        ),
    ] = None,
) -> IndexTables:
    return await service.index.tables(partial=flag(partial))


_Tables = Annotated[IndexTables, Depends(_tables)]


@routes.get(
    "/topics-index",
    example={
        **_AROUND,
        "views": {
            "backlog": 318,
            "unconsumed": 2,
            "active": 1024,
            "noSubscription": 41,
            "notLoaded": 96,
            "idle": 211,
            "nearQuota": 1,
        },
        "topics": [_TOPIC],
    },
)
async def topics_index(
    tables: _Tables,
    everywhere: _Everywhere,
    asked: _Asked,
    sort: Annotated[Literal["topic", TopicField], Query(description=_SORT)] = "topic",
    view: Annotated[TopicView | None, Query(description="Only such topics; left out: all")] = None,
    grouped: Annotated[
        str | None,
        Flag(False, "`true`: partitions are one row; in the order of names, without a view"),
    ] = None,
    schemas: Annotated[
        str | None, Flag(False, "`true`: rows have `schema`, its type and newest version, or null")
    ] = None,
) -> Response:
    """Topics with their figures, a page of them by name or by a figure.

    Each partition is a topic. A figure is null where it isn't known, as of topics that no broker
    has loaded; these come last in both orders. The oldest message is also null without a backlog.
    `msgBacklogTrend` is by how many entries a second the backlogs of its subscriptions grow,
    `catchUpSeconds` when they are gone at this trend; null: never. `history` has figures at even
    distances in the last hour.
    `idleSince` is since when nothing has been published, at the latest: the time of the last
    message, or when the topic was loaded where no message is stored. `backlogQuotaUsage` is how
    much of a backlog quota is used, 1.0: all; of two quotas the greater one; null: there is none.
    The view `idle` has topics without a message for a week, `nearQuota` those above 0.8.
    With `grouped=true` a partitioned topic is one row, without history; `partitions` says how many
    there are. Its figures are sums. The oldest message is that of all; `maxMsgBacklog` and the
    numbers of clients and subscriptions are the greatest of a partition. Without partition 0 it
    isn't in `total` and `matching`. `views` counts partitions.
    `views` counts the topics of each view, with `q` and `namespace` applied. Only topics that the
    caller may look up are there.
    """
    query = asked.query(sort, view, everywhere.place_max, grouped=flag(grouped))

    async def here() -> PageAnswer:
        return await tables.topic_page(query, await everywhere.visitor.sight(tables.topics))

    async def schema(row: Row) -> Row:
        service = everywhere.visitor.service
        found = await service.schemas.latest_known(TopicName.parse(row["topic"]))
        shown = found and {"type": found.definition.type, "version": found.version}
        return {"schema": shown}

    return await everywhere.page("topics", query, here, schema if flag(schemas) else None)


@routes.get(
    "/subscriptions-index",
    example={
        **_AROUND,
        "views": {"backlog": 318, "unconsumed": 2, "growing": 12},
        "subscriptions": [_SUBSCRIPTION],
    },
)
async def subscriptions_index(
    tables: _Tables,
    everywhere: _Everywhere,
    asked: _Asked,
    sort: Annotated[Literal["topic", SubscriptionField], Query(description=_SORT)] = "topic",
    view: Annotated[
        SubscriptionView | None, Query(description="Only such ones; left out: all")
    ] = None,
) -> Response:
    """Subscriptions of loaded topics with their figures, a page of them by topic or by a figure.

    `q` is looked for in the topic's name and the subscription's. `msgBacklogTrend` is by how many
    entries a second the backlog grows, below 0: shrinks, a moving average over half a minute.
    `catchUpSeconds` is when it is gone at this trend; null: never. `history` has the backlog at
    even distances in the last hour.
    """
    query = asked.query(sort, view, everywhere.place_max)

    async def here() -> PageAnswer:
        return await tables.subscription_page(
            query, await everywhere.visitor.sight(tables.subscriptions)
        )

    return await everywhere.page("subscriptions", query, here)


@routes.get(
    "/namespaces-index",
    example={
        "asOf": 1795867260000,
        "complete": True,
        "topicsRead": 12408,
        "topicsLoaded": 12408,
        "namespaces": {
            "public/default": {
                "topicCount": 12,
                "loadedTopicCount": 12,
                **{field: value for field, value in _TOPIC.items() if field[0] not in "tb"},
            }
        },
        "silentBrokers": {},
    },
)
async def namespaces_index(request: Request, tables: _Tables, everywhere: _Everywhere) -> Response:
    """Sums of the topics' figures by namespace.

    Of `maxMsgBacklog` and the oldest message it is the greatest one. Namespaces without topics are
    left out. `loadedTopicCount` counts the topics that have figures, as a broker has loaded them.
    """

    async def here() -> dict[str, Any]:
        sight = await everywhere.visitor.sight(tables.topics)
        return {
            "asOf": tables.as_of_ms,
            "complete": tables.is_complete,
            **read_json(tables.read),
            "namespaces": await tables.sums(sight, everywhere.place_max),
        }

    found, silent = await everywhere.ask(here)
    sums = [each["namespaces"] for each in found]
    answer = {
        "asOf": min(each["asOf"] for each in found),
        "complete": all(each.get("complete", True) for each in found),
        **read_json(read_together(map(read_of, found))),
        "namespaces": sums[0] if len(sums) == 1 else await run_in_turns(merged_sums(sums)),
        "silentBrokers": silent,
    }
    return await long_json(request, answer, is_shared=True)
