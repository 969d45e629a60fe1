"""Brokers: lists, versions, configuration, health, shutdown."""

import asyncio
from typing import Annotated

from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response

from magnetar.broker.http.dependencies import DECODED, Flag, Service, flag
from magnetar.broker.http.errors import ApiError, answer_for
from magnetar.broker.http.parameters import Path, Query
from magnetar.broker.http.responses import JsonResponse, TextResponse
from magnetar.broker.http.routing.route import Access, Routes, RoutingMode
from magnetar.broker.http.topics.health import HealthCheckError, check_round_trip
from magnetar.broker.service.broker_service import BrokerService

routes = Routes("/admin/v2", tag="brokers", access=Access.SUPERUSER, mode=RoutingMode.LOCAL)

HEALTH_TIMEOUT_S = 30.0
# Isolation policies would make some bundles controlled; this broker's cluster has none.
_OWNED = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
Setting = Annotated[str, Path(description="Setting", examples=["maxTenants"]), DECODED]


@routes.get("/brokers", example=["127.0.0.1:8080"])
async def list_brokers(service: Service) -> Response:
    """Active brokers as host:port of their web address."""
    return JsonResponse(await service.cluster_members.ids())


@routes.get(
    "/brokers/health", text="ok", statuses={503: "The round trip failed; `reason` says where"}
)
async def health(
    service: Service,
    topicVersion: Annotated[str | None, Query(description="Accepted for Pulsar's clients")] = None,
) -> Response:
    """Writes a message to a topic of this broker's own and reads it back; `ok` when it came."""
    late = answer_for(TimeoutError, 503, f"No answer within {HEALTH_TIMEOUT_S:.0f} s")
    with late, answer_for(HealthCheckError, 503):
        async with asyncio.timeout(HEALTH_TIMEOUT_S):
            await check_round_trip(service)
    return TextResponse("ok")


@routes.get("/brokers/ready", "`ok` once the broker serves requests", access=Access.FREE, text="ok")
async def ready(service: Service) -> Response:
    return TextResponse("ok")


@routes.get("/brokers/version", "Version of this broker", access=Access.FREE, text="0.1.0")
async def version(request: Request, service: Service) -> Response:
    return TextResponse(request.app.state.version)


@routes.get(
    "/brokers/leaderBroker",
    example={"serviceUrl": "http://127.0.0.1:8080", "brokerId": "127.0.0.1:8080"},
    statuses={404: "None is elected just now"},
)
async def leader(service: Service) -> Response:
    """The leader among the brokers."""
    if (found := await service.cluster_members.leader()) is None:
        raise ApiError(404, "Couldn't find leader broker")
    return JsonResponse(found)


@routes.get("/brokers/configuration", example=["maxTenants"])
async def dynamic_names(service: Service) -> Response:
    """Names of the settings that can change at run time."""
    return JsonResponse(service.dynamic_configuration.names())


@routes.get("/brokers/configuration/values", example={"maxTenants": "100"})
async def dynamic_values(service: Service) -> Response:
    """Settings changed at run time."""
    return JsonResponse(await service.dynamic_configuration.values())


@routes.post(
    "/brokers/configuration/{name}/{value}",
    empty="It holds; no body",
    statuses={412: "Not one that can change at run time, or not a value of it"},
)
async def set_dynamic(
    service: Service,
    name: Setting,
    value: Annotated[str, Path(description="Percent-encoded", examples=["100"]), DECODED],
) -> None:
    """Change a setting of all brokers, now and for later starts."""
    await service.dynamic_configuration.set(name, value)


@routes.delete(
    "/brokers/configuration/{name}",
    empty="Done, also when it wasn't changed; no body",
    statuses={412: "Not one that can change at run time"},
)
async def delete_dynamic(service: Service, name: Setting) -> None:
    """Back to the value that each broker was started with."""
    await service.dynamic_configuration.delete(name)


@routes.get("/brokers/configuration/runtime", example={"clusterName": "standalone"})
async def runtime(
    service: Service,
    changed: Annotated[
        str | None, Flag(False, "`true`: only those that differ from their defaults")
    ] = None,
) -> Response:
    """Settings in force, secrets masked."""
    return JsonResponse(service.config.as_keys(changed=flag(changed)))


@routes.get("/brokers/internal-configuration", example={"ledgersRootPath": "/ledgers"})
async def internal_configuration(service: Service) -> Response:
    """Where the metadata lives."""
    url = service.config.metadata_store_url or "embedded"
    return JsonResponse(
        {
            "zookeeperServers": url,
            "configurationStoreServers": url,
            "metadataStoreUrl": url,
            "configurationMetadataStoreUrl": url,
            "ledgersRootPath": "/ledgers",
        }
    )


@routes.get("/brokers/backlog-quota-check", status=204)
async def backlog_quota_check(service: Service) -> None:
    """Check all backlog quotas now and act on them."""
    await service.background_tasks.check_backlogs()


@routes.get("/brokers/{cluster}", "Active brokers of a cluster", example=["127.0.0.1:8080"])
async def list_cluster_brokers(
    service: Service,
    cluster: Annotated[str, Path(description="Cluster name", examples=["standalone"])],
) -> Response:
    # Pulsar's broker doesn't look at the name either: every cluster lists its own brokers.
    return JsonResponse(await service.cluster_members.ids())


@routes.get(
    "/brokers/{cluster}/{broker}/ownedNamespaces",
    mode=RoutingMode.BROKER,
    example={"public/default/0x00000000_0x08000000": _OWNED},
    statuses={307: "Another broker: ask itself", 404: "No such broker"},
)
async def owned_namespaces(
    service: Service,
    cluster: Annotated[str, Path(description="Cluster name", examples=["standalone"])],
    broker: Annotated[str, Path(description="host:port", examples=["127.0.0.1:8080"]), DECODED],
) -> Response:
    """Bundles that a broker owns."""
    if broker != service.broker_id:  # else sent there
        raise ApiError(503, f"Broker {broker} can't be asked by this scheme, or just now")
    return JsonResponse(dict.fromkeys(sorted(service.bundles.owned_bundles), _OWNED))


@routes.post(
    "/brokers/shutdown",
    statuses={
        412: "`forcedTerminateTopic=false`: topics are always closed at once",
        501: "This process can't be stopped by request",
    },
)
async def shutdown(
    service: Service,
    maxConcurrentUnloadPerSec: Annotated[
        int, Query(ge=0, description="Bundles to unload each second before; 0: all at the end")
    ] = 0,
    forcedTerminateTopic: Annotated[str | None, Flag(True)] = None,
) -> Response:
    """Stop this broker in an orderly way, after the answer."""
    if not flag(forcedTerminateTopic, default=True):
        raise ApiError(412, "Topics are always closed at once: forcedTerminateTopic must be true")
    stop = service.request_shutdown
    if stop is None:
        raise ApiError(501, "This process can't be stopped by request")

    async def leave() -> None:
        try:
            if maxConcurrentUnloadPerSec:
                await _unload_slowly(service, maxConcurrentUnloadPerSec)
        finally:
            stop()

    return Response(status_code=204, background=BackgroundTask(lambda: service.run(leave())))


async def _unload_slowly(service: BrokerService, per_second: int) -> None:
    for number, bundle in enumerate(list(service.bundles.owned_bundles), 1):
        await service.bundles.release(bundle)
        if number % per_second == 0:
            await asyncio.sleep(1)


# --- moving the metadata to another store: this broker keeps it where it is


@routes.get("/metadata/migration/status", example={"phase": "NOT_STARTED"})
async def status() -> Response:
    """State of moving the metadata to another store: it never began."""
    return JsonResponse({"phase": "NOT_STARTED"})


@routes.post("/metadata/migration/start", statuses={400: "No target", 501: "Always"})
async def start(
    target: Annotated[str | None, Query(description="URL of the other store")] = None,
) -> Response:
    """Refused: the metadata stays where it is."""
    if not target:
        raise ApiError(400, "Target URL is required")
    raise ApiError(501, "Moving the metadata to another store is not supported")
