"""Bundles of a namespace: unload, split, deletion, hashes.

Included behind the namespaces' own routes: ``/{tenant}/{namespace}/{bundle}`` would take their
paths otherwise.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from starlette.requests import Request
from starlette.responses import Response

from magnetar.broker.cluster.broker_client import BrokerCall
from magnetar.broker.cluster.bundle_load import (
    busiest_bundle,
    fullest_bundle,
    namespace_bundles,
    split_points,
    topics_of_bundle,
)
from magnetar.broker.http.dependencies import (
    Authoritative,
    Body,
    Bundle,
    Namespace,
    Service,
    flag,
    form_decode,
)
from magnetar.broker.http.errors import ApiError, RedirectError, answer_for
from magnetar.broker.http.parameters import Path, Query
from magnetar.broker.http.responses import JsonResponse
from magnetar.broker.http.routing.redirects import location_at, require_owner, whom_to_ask
from magnetar.broker.http.routing.route import Access, Routes, RoutingMode
from magnetar.broker.http.routing.scatter_gather import ScatterGather, Spread
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.service.broker_service import BrokerService
from magnetar.bundles.errors import BundleBusyError, BundleError, InvalidBundleError
from magnetar.bundles.namespace_bundles import BUNDLES_MAX, HashRange, NamespaceBundles, topic_hash
from magnetar.bundles.splitting import RANGE_EQUALLY_DIVIDE, SPLIT_ALGORITHMS

routes = Routes(
    "/admin/v2/namespaces/{tenant}/{namespace}/{bundle}",
    tag="namespaces",
    access=Access.SUPERUSER,
    mode=RoutingMode.BUNDLE,
    statuses={
        404: "No such namespace",
        412: "No such bundle; the reason names the one at its place",
    },
)


@contextmanager
def bundle_errors() -> Iterator[None]:
    """Errors of the bundle layer as answers: 412 a wrong range, 503 not ready or not ours."""
    with answer_for(BundleError, 503), answer_for(InvalidBundleError, 412):
        yield


@routes.put("/unload", authoritative=True, statuses={409: "The destination isn't an active broker"})
async def unload_bundle(
    service: Service,
    namespace: Namespace,
    bundle: Bundle,
    destinationBroker: Annotated[
        str | None, Query(description="host:port of the broker that is to take it")
    ] = None,
) -> None:
    """Unload a bundle: its topics close, their clients reconnect."""
    if destinationBroker and destinationBroker not in await service.cluster_members.ids():
        raise ApiError(409, "Not allowed unload namespace bundle to inactive destination broker")
    with bundle_errors():
        bundles = await namespace_bundles(service, namespace)
        name = f"{namespace}/{bundles.find(bundle)}"
        await require_owner(service, name)
        if destinationBroker and destinationBroker != service.broker_id:
            await _give_away(service, name, destinationBroker)
        else:
            await service.bundles.release(name)


async def _give_away(service: BrokerService, bundle: str, destination: str) -> None:
    """Its clients are sent there. A bundle that nobody owns stays nobody's.

    Raises:
        ApiError: 503 it has stayed here.
    """
    if bundle not in service.bundles.owned_bundles:
        return
    if service.sharing is None or not await service.sharing.give_away(bundle, destination):
        raise ApiError(503, f"Bundle {bundle} could not be given to broker {destination}")


@routes.put(
    "/split",
    mode=RoutingMode.OWNER_IF_LOADED,
    statuses={
        404: "No such namespace; `HOT`, and no bundle has traffic",
        412: "No such bundle, unknown algorithm, no positions where it needs them, "
        f"more than {BUNDLES_MAX} bundles",
    },
)
async def split_bundle(
    request: Request,
    service: Service,
    namespace: Namespace,
    spread: Spread,
    bundle: Annotated[
        str,
        Path(
            description="Hash range, `LARGEST` (most topics) or `HOT` (most traffic)",
            examples=["0x00000000_0x40000000"],
        ),
    ],
    positions: Annotated[list[int] | None, Body(list[int], [1073741824])],
    unload: Annotated[str | None, Query(description="Also unload the new bundles")] = None,
    splitAlgorithmName: Annotated[
        str | None, Query(description=f"One of {', '.join(SPLIT_ALGORITHMS)}")
    ] = None,
    authoritative: Authoritative = None,
) -> None:
    """Split a bundle; its topics stay open unless `unload` is given."""
    algorithm = splitAlgorithmName or RANGE_EQUALLY_DIVIDE
    with bundle_errors():
        bundles = await namespace_bundles(service, namespace)
        if algorithm not in SPLIT_ALGORITHMS:
            raise ApiError(
                412,
                "Unsupported namespace bundle split algorithm, supported algorithms are "
                f"[{', '.join(SPLIT_ALGORITHMS)}]",
            )
        found = await _find(service, spread, bundles, form_decode(bundle))
        await _send_to_owner(
            request, service, f"{namespace}/{found}", is_chosen=flag(authoritative)
        )
        points = await split_points(service, bundles, found, algorithm, positions or ())
        if len(bundles) + len(points) > BUNDLES_MAX:
            raise ApiError(412, f"A namespace has at most {BUNDLES_MAX} bundles")
        names = await service.bundles.split(namespace, found, points)
        if flag(unload):
            for name in names:
                await service.bundles.release(name)


async def _find(
    service: BrokerService, spread: ScatterGather, bundles: NamespaceBundles, text: str
) -> HashRange:
    if text == "LARGEST":
        return await fullest_bundle(service, bundles)
    if text == "HOT":
        busiest = busiest_bundle(bundles, await _traffic(service, spread, bundles))
        if busiest is None:
            raise ApiError(404, "Bundle range HOT not found")
        return busiest
    return bundles.find(text)


async def _traffic(
    service: BrokerService, spread: ScatterGather, bundles: NamespaceBundles
) -> dict[str, float]:
    """Bytes a second, in and out, of a namespace's bundles by range."""

    async def here() -> dict[str, Any]:
        return {"lastStats": await service.loads.get()}

    call = BrokerCall("GET", "/admin/v2/broker-stats/load-report")
    loads: dict[str, float] = {}
    for report in (await spread.brokers(here, call)).check().values:
        for name, stats in report["lastStats"].items():
            namespace, _, found = name.rpartition("/")
            if namespace == bundles.namespace:
                sum_ = stats["msgThroughputIn"] + stats["msgThroughputOut"]
                loads[found] = loads.get(found, 0.0) + sum_
    return loads


async def _send_to_owner(
    request: Request, service: BrokerService, bundle: str, *, is_chosen: bool
) -> None:
    """Raises RedirectError: to the bundle by its range, whatever word was used for it."""
    if (owner := await whom_to_ask(service, bundle, is_chosen=is_chosen)) is None:
        return
    path = f"/admin/v2/namespaces/{bundle}/split"
    if (location := location_at(owner, request, path)) is None:
        raise BundleBusyError(bundle)
    raise RedirectError(location)


@routes.get(
    "/topicHashPositions",
    access=Access.ADMIN_403,
    example={
        "namespace": "public/default",
        "bundle": "0x00000000_0x40000000",
        "topicHashPositions": {"persistent://public/default/orders": 883617312},
    },
)
async def topic_hash_positions(
    service: Service,
    namespace: Namespace,
    bundle: Bundle,
    topics: Annotated[
        list[str] | None, Query(description="Full names; none: all topics of the bundle")
    ] = None,
) -> Response:
    """Hashes of a bundle's topics, to choose split positions."""
    with bundle_errors():
        found = (await namespace_bundles(service, namespace)).find(bundle)
    names = await topics_of_bundle(service, namespace, found)
    if topics:
        wanted = set(topics)
        names = [name for name in names if name in wanted]
    hashes = {name: topic_hash(name) for name in names}
    return JsonResponse(
        {"namespace": namespace, "bundle": str(found), "topicHashPositions": hashes}
    )


@routes.delete(
    "", access=Access.ADMIN_403, mode=RoutingMode.ACQUIRE, statuses={409: "It holds topics"}
)
async def delete_bundle(
    service: Service,
    namespace: Namespace,
    bundle: Bundle,
    force: Annotated[str | None, Query(description="Also its topics")] = None,
) -> None:
    """Give up an empty bundle; with `force` its topics are deleted first."""
    with bundle_errors():
        if not await service.resources.namespace_exists(namespace):
            raise ApiError(404, "Namespace does not exist")
        found = (await namespace_bundles(service, namespace)).find(bundle)
        await require_owner(service, f"{namespace}/{found}")
        names = await topics_of_bundle(service, namespace, found)
        if names and not flag(force):
            raise ApiError(409, "Cannot delete non empty bundle")
        for name in names:
            await service.directory.delete(TopicName.parse(name), force=True)
        # Ranges always cover all hashes: only the ownership goes, and the next lookup takes it.
        await service.bundles.release(f"{namespace}/{found}")
