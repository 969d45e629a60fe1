"""Topics and load of this broker."""

import asyncio
import gc
import heapq
import math
from collections.abc import AsyncIterator, Callable, Iterator, Sized
from operator import itemgetter
from typing import Annotated, Any, Final, TypeVar

import psutil
from starlette.requests import Request
from starlette.responses import Response

from magnetar.broker.cluster.load_report import load_report
from magnetar.broker.http.dependencies import Namespace, Service
from magnetar.broker.http.errors import ApiError, answer_for
from magnetar.broker.http.parameters import Path, Query
from magnetar.broker.http.responses import JsonResponse
from magnetar.broker.http.routing.route import Access, Routes, RoutingMode
from magnetar.broker.http.streamed_answers import in_pieces, long_json, object_of, taken_apart
from magnetar.broker.service.broker_service import BrokerService
from magnetar.broker.topic.topic import Topic
from magnetar.metadata.loop_turns import in_turns
from magnetar.metadata.sorted_names import sort_in_turns

routes = Routes(
    "/admin/v2/broker-stats", tag="brokers", access=Access.SUPERUSER, mode=RoutingMode.LOCAL
)

T = TypeVar("T")

_NAMESPACE_FIGURES: Final = (
    ("brk_in_rate", "msgRateIn"),
    ("brk_in_tp_rate", "msgThroughputIn"),
    ("brk_out_rate", "msgRateOut"),
    ("brk_out_tp_rate", "msgThroughputOut"),
    ("brk_storage_size", "storageSize"),
)
_CONNECTIONS_SLICE: Final = 500
_CONNECTIONS_EXAMPLE: Final = {
    "connections": [
        {
            "address": "10.0.3.9:41514",
            "listener": "pulsar+ssl",
            "advertisedListener": None,
            "role": "billing",
            "originalRole": None,
            "clientVersion": "Pulsar-Java-v4.0.1",
            "protocolVersion": 21,
            "since": 1764321000000,
            "producers": 1,
            "consumers": 2,
            "bytesIn": 52340,
            "bytesOut": 8120340,
        }
    ],
    "count": 1,
    "next": None,
}
_METRICS_EXAMPLE = [
    {"metrics": {"brk_in_rate": 12.5}, "dimensions": {"namespace": "public/default"}}
]


@routes.get(
    "/topics",
    "Statistics of all loaded topics, by namespace, bundle and domain",
    example={"public/default": {"0x00000000_0x08000000": {"persistent": {}}}},
)
@routes.get("/destinations", "", include_in_schema=False)
async def topics(request: Request, service: Service) -> Response:
    found: dict[str, Any] = {}
    async for topic in in_turns(service.topics.walk()):
        name = topic.name
        bundle = (await service.bundles.bundle_of(str(name))).rpartition("/")[2]
        of_bundle = found.setdefault(name.namespace, {}).setdefault(bundle, {})
        of_bundle.setdefault(name.domain, []).append(topic)
    return await in_pieces(request, _statistics(found))


def _statistics(found: dict[str, Any] | list[Topic]) -> AsyncIterator[bytes]:
    """Taken when they are sent: those of a hundred thousand topics are 100 MB.

    What was sent is let go: to free all at the end takes 6 ms for 20,000 bundles.
    """
    if isinstance(found, dict):
        return object_of((name, _statistics(part)) for name, part in _emptied(found.popitem, found))
    return object_of(
        (each.full_name, _topic_statistics(each)) for each in _emptied(found.pop, found)
    )


def _emptied(take: Callable[[], T], found: Sized) -> Iterator[T]:
    while found:
        yield take()


async def _topic_statistics(topic: Topic) -> AsyncIterator[bytes]:
    async for piece in taken_apart(await topic.stats_in_turns()):
        yield piece


@routes.get("/connections", example=_CONNECTIONS_EXAMPLE, statuses={400: "Not a place"})
async def connections(
    service: Service,
    limit: Annotated[int, Query(ge=1, le=1000, description="Connections at most")] = 100,
    after: Annotated[str, Query(description="`next` of the page before")] = "",
) -> Response:
    """Clients of the binary protocol that are connected to this broker, the oldest first.

    `since` is in milliseconds since 1970. `bytesIn` and `bytesOut` are those of TCP since then,
    null where the system doesn't count them. `advertisedListener` is the one that the client asks
    for. `count` is of all connections, `next` null on the last page. WebSockets aren't among them.
    """
    start, end = _place(after), (math.inf, "")
    page: list[tuple[tuple[float, str], Any]] = []
    found = list(service.connections)
    for first in range(0, len(found), _CONNECTIONS_SLICE):
        some = found[first : first + _CONNECTIONS_SLICE]
        rows = (((each.accepted_ms, each.remote), each) for each in some if each.connected)
        behind = [row for row in rows if start < row[0] < end]
        if behind:
            page = heapq.nsmallest(limit + 1, (*page, *behind), key=itemgetter(0))
            end = page[-1][0] if len(page) > limit else end
        await asyncio.sleep(0)
    following = "/".join(map(str, page[limit - 1][0])) if len(page) > limit else None
    shown: list[dict[str, Any]] = []
    async for _, each in in_turns(page[:limit]):
        if not each.closed:
            shown.append(each.summary())
    return JsonResponse({"connections": shown, "count": len(found), "next": following})


def _place(text: str) -> tuple[float, str]:
    """Of a connection in the order of pages. Raises ApiError 400."""
    since, _, address = text.partition("/")
    with answer_for(ValueError, 400, f"after: {text!r:.60} is no `next` of a page"):
        return (int(since), address) if text else (-1, "")


@routes.get(
    "/load-report",
    example={
        "webServiceUrl": "http://127.0.0.1:8080",
        "cpu": {"usage": 31.5, "limit": 200.0},
        "numTopics": 3,
        "numBundles": 2,
    },
)
async def report(request: Request, service: Service) -> Response:
    """Load of this broker and its machine (LocalBrokerData)."""
    version: str = request.app.state.version
    found = await load_report(service, service.host_usage, version)
    return await long_json(request, found, is_shared=True)  # it has the walk of all who ask


@routes.get("/metrics", example=_METRICS_EXAMPLE)
async def metrics(request: Request, service: Service) -> Response:
    """Figures of the entry cache and of each namespace."""
    sums: dict[str, dict[str, float]] = {}
    persistent_count = 0
    async for topic in in_turns(service.topics.walk()):
        persistent_count += topic.persistent
        stats = await topic.stats_in_turns()
        of_namespace = sums.setdefault(topic.name.namespace, {})
        subscriptions = stats["subscriptions"].values()
        metrics = {name: stats[field] for name, field in _NAMESPACE_FIGURES} | {
            "brk_no_of_producers": len(stats["publishers"]),
            "brk_no_of_subscriptions": len(subscriptions),
            "brk_no_of_consumers": sum(len(each["consumers"]) for each in subscriptions),
            "brk_msg_backlog": sum(each["msgBacklog"] for each in subscriptions),
        }
        for name, value in metrics.items():
            of_namespace[name] = of_namespace.get(name, 0) + value
    cache = {
        "brk_ml_count": persistent_count,
        "brk_ml_cache_used_size": service.ledgers.cache.size,
    }
    names = await sort_in_turns(list(sums))
    answer = [
        _metrics(cache, {}),
        *[_metrics(sums[name], {"namespace": name}) async for name in in_turns(names)],
    ]
    return await long_json(request, answer)


@routes.get("/mbeans", example=_METRICS_EXAMPLE)
async def process_metrics(service: Service) -> Response:
    """Figures of the process and of its garbage collector."""
    process = psutil.Process()
    with process.oneshot():
        times, memory = process.cpu_times(), process.memory_info()
        metrics = {
            "cpuUserSeconds": times.user,
            "cpuSystemSeconds": times.system,
            "residentBytes": memory.rss,
            "virtualBytes": memory.vms,
            "threads": process.num_threads(),
        }
    return JsonResponse(
        [
            _metrics(metrics, {"MBean": "process"}),
            *(
                _metrics(generation, {"MBean": f"python.gc:generation={number}"})
                for number, generation in enumerate(gc.get_stats())
            ),
        ]
    )


def _metrics(metrics: dict[str, Any], dimensions: dict[str, str]) -> dict[str, Any]:
    return {"metrics": metrics, "dimensions": dimensions}


@routes.get(
    "/allocator-stats/{allocator}",
    example={"usedDirectMemory": 33554432},
    statuses={406: "Another name"},
)
async def allocator_stats(
    service: Service,
    allocator: Annotated[str, Path(description="Which memory", examples=["default"])],
) -> Response:
    """Memory of the process (`default`) or of the entry cache (`ml-cache`)."""
    if allocator not in ("default", "ml-cache"):
        raise ApiError(406, f"Invalid allocator name : {allocator:.100}")
    return JsonResponse(_allocator(service, allocator))


def _allocator(service: BrokerService, name: str) -> dict[str, Any]:
    """AllocatorStats: Python's allocator has no arenas to show, so only the sums are filled."""
    cache = service.ledgers.cache.size
    is_cache = name == "ml-cache"
    return {
        "numDirectArenas": 0,
        "numHeapArenas": 0,
        "numThreadLocalCaches": 0,
        "normalCacheSize": 0,
        "smallCacheSize": 0,
        "usedDirectMemory": cache,
        "usedHeapMemory": -1 if is_cache else psutil.Process().memory_info().rss,
        "directArenas": [],
        "heapArenas": [],
    }


@routes.get("/bookieops", status=204, statuses={501: "Always"})
async def bookie_operations(service: Service) -> Response:
    """Ledger operations by topic: not counted."""
    raise ApiError(501, "Operations on ledgers are not counted by topic")


@routes.get(
    "/broker-resource-availability/{tenant}/{namespace}",
    status=204,
    statuses={409: "Always, as with Pulsar's default load manager"},
)
async def resource_availability(service: Service, namespace: Namespace) -> Response:
    """Resource availability by broker: not kept."""
    raise ApiError(409, "The load manager does not support this operation")
