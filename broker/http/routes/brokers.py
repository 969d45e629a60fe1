"""Brokers: lists, versions, configuration, health, shutdown."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from starlette.background import BackgroundTask

from magnetar.broker.http.dependencies import Flag, Service, flag
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.health import HealthCheckError, check_round_trip
from magnetar.broker.http.middleware.raw_path import form_decode
from magnetar.broker.http.responses import JsonResponse, TextResponse, no_content
from magnetar.broker.service.broker_service import BrokerService

router = APIRouter(prefix="/admin/v2", tags=["brokers"])

HEALTH_TIMEOUT_S = 30.0


@router.get(
    "/brokers",
    summary="Active brokers as host:port of their web address",
    responses={200: {"content": {"application/json": {"example": ["127.0.0.1:8080"]}}}},
)
async def list_brokers(service: Service) -> Response:
    return JsonResponse(await service.cluster_members.ids())


@router.get(
    "/brokers/health",
    response_class=TextResponse,
    summary="Writes a message to a topic of this broker's own and reads it back; `ok` when it came",
    responses={
        200: {"content": {"text/plain": {"example": "ok"}}},
        503: {"description": "The round trip failed; `reason` says where"},
    },
)
async def health(
    service: Service,
    topicVersion: Annotated[str | None, Query(description="Accepted for Pulsar's clients")] = None,
) -> Response:
    try:
        async with asyncio.timeout(HEALTH_TIMEOUT_S):
            await check_round_trip(service)
    except TimeoutError as error:
        raise ApiError(503, f"No answer within {HEALTH_TIMEOUT_S:.0f} s") from error
    except HealthCheckError as error:
        raise ApiError(503, str(error)) from error
    return TextResponse("ok")


@router.get(
    "/brokers/ready",
    response_class=TextResponse,
    summary="`ok` once the broker serves requests",
    responses={200: {"content": {"text/plain": {"example": "ok"}}}},
)
async def ready(service: Service) -> Response:
    return TextResponse("ok")


@router.get(
    "/brokers/version",
    response_class=TextResponse,
    summary="Version of this broker",
    responses={200: {"content": {"text/plain": {"example": "0.1.0"}}}},
)
async def version(service: Service) -> Response:
    from magnetar.broker.http.app import product_version

    return TextResponse(product_version())


@router.get(
    "/brokers/leaderBroker",
    summary="The leader among the brokers",
    responses={
        200: {
            "content": {
                "application/json": {
                    "example": {
                        "serviceUrl": "http://127.0.0.1:8080",
                        "brokerId": "127.0.0.1:8080",
                    }
                }
            }
        },
        404: {"description": "None is elected just now"},
    },
)
async def leader(service: Service) -> Response:
    if (found := await service.cluster_members.leader()) is None:
        raise ApiError(404, "Couldn't find leader broker")
    return JsonResponse(found)


@router.get(
    "/brokers/configuration",
    summary="Names of the settings that can change at run time",
    responses={200: {"content": {"application/json": {"example": ["maxTenants"]}}}},
)
async def dynamic_names(service: Service) -> Response:
    return JsonResponse(service.dynamic_configuration.names())


@router.get(
    "/brokers/configuration/values",
    summary="Settings changed at run time",
    responses={200: {"content": {"application/json": {"example": {"maxTenants": "100"}}}}},
)
async def dynamic_values(service: Service) -> Response:
    return JsonResponse(await service.dynamic_configuration.values())


@router.post(
    "/brokers/configuration/{name}/{value}",
    response_class=Response,
    summary="Change a setting of all brokers, now and for later starts",
    responses={
        200: {
            "description": "It holds; no body",
            "content": {"text/plain": {"example": ""}},
        },
        412: {"description": "Not one that can change at run time, or not a value of it"},
    },
)
async def set_dynamic(
    service: Service,
    name: Annotated[str, Path(description="Setting", examples=["maxTenants"])],
    value: Annotated[str, Path(description="Percent-encoded", examples=["100"])],
) -> Response:
    await service.dynamic_configuration.set(form_decode(name), form_decode(value))
    return Response(status_code=200)


@router.delete(
    "/brokers/configuration/{name}",
    response_class=Response,
    summary="Back to the value that each broker was started with",
    responses={
        200: {
            "description": "Done, also when it wasn't changed; no body",
            "content": {"text/plain": {"example": ""}},
        },
        412: {"description": "Not one that can change at run time"},
    },
)
async def delete_dynamic(
    service: Service, name: Annotated[str, Path(description="Setting", examples=["maxTenants"])]
) -> Response:
    await service.dynamic_configuration.delete(form_decode(name))
    return Response(status_code=200)


@router.get(
    "/brokers/configuration/runtime",
    summary="All settings in force, secrets masked",
    responses={200: {"content": {"application/json": {"example": {"clusterName": "standalone"}}}}},
)
async def runtime(service: Service) -> Response:
    return JsonResponse(service.config.as_keys())


@router.get(
    "/brokers/internal-configuration",
    summary="Where the metadata lives",
    responses={
        200: {"content": {"application/json": {"example": {"ledgersRootPath": "/ledgers"}}}}
    },
)
async def internal_configuration(service: Service) -> Response:
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


@router.get(
    "/brokers/backlog-quota-check",
    status_code=204,
    summary="Check all backlog quotas now and act on them",
)
async def backlog_quota_check(service: Service) -> Response:
    await service.check_backlog_quotas()
    return no_content()


@router.get(
    "/brokers/{cluster}",
    summary="Active brokers of a cluster",
    responses={200: {"content": {"application/json": {"example": ["127.0.0.1:8080"]}}}},
)
async def list_cluster_brokers(
    service: Service,
    cluster: Annotated[str, Path(description="Cluster name", examples=["standalone"])],
) -> Response:
    # Pulsar's broker doesn't look at the name either: every cluster lists its own brokers.
    return JsonResponse(await service.cluster_members.ids())


@router.get(
    "/brokers/{cluster}/{broker}/ownedNamespaces",
    summary="Bundles that a broker owns",
    responses={
        200: {
            "content": {
                "application/json": {
                    "example": {
                        "public/default/0x00000000_0x08000000": {
                            "broker_assignment": "shared",
                            "is_controlled": False,
                            "is_active": True,
                        }
                    }
                }
            }
        },
        307: {"description": "Another broker: ask itself"},
        404: {"description": "No such broker"},
    },
)
async def owned_namespaces(
    service: Service,
    cluster: Annotated[str, Path(description="Cluster name", examples=["standalone"])],
    broker: Annotated[str, Path(description="host:port", examples=["127.0.0.1:8080"])],
) -> Response:
    if (name := form_decode(broker)) != service.broker_id:  # else sent there: places.py
        raise ApiError(503, f"Broker {name} can't be asked by this scheme, or just now")
    # Isolation policies would make some of them controlled; this broker's cluster has none.
    status = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
    return JsonResponse(dict.fromkeys(sorted(service.bundles.owned_bundles), status))


@router.post(
    "/brokers/shutdown",
    status_code=204,
    summary="Stop this broker in an orderly way, after the answer",
    responses={
        412: {"description": "`forcedTerminateTopic=false`: topics are always closed at once"},
        501: {"description": "This process can't be stopped by request"},
    },
)
async def shutdown(
    service: Service,
    maxConcurrentUnloadPerSec: Annotated[
        int, Query(ge=0, description="Bundles to unload each second before; 0: all at the end")
    ] = 0,
    forcedTerminateTopic: Annotated[str | None, Flag(True)] = None,
) -> Response:
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
