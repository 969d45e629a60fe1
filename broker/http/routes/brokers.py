"""Brokers: lists, versions, configuration, health (http-api 2.8)."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Path, Query, Response

from broker.http.dependencies import Service
from broker.http.errors import ApiError
from broker.http.health import HealthCheckError, check_round_trip
from broker.http.responses import JsonResponse, TextResponse
from broker.service.broker_service import BrokerService

__all__ = ["router"]

router = APIRouter(prefix="/admin/v2", tags=["brokers"])

HEALTH_TIMEOUT_S = 30.0


def broker_id(service: BrokerService) -> str:
    """``host:port`` of the web address, as lists and statistics name a broker."""
    return urlsplit(service.web_url).netloc


@router.get(
    "/brokers",
    summary="Active brokers as host:port of their web address",
    responses={200: {"content": {"application/json": {"example": ["127.0.0.1:8080"]}}}},
)
async def list_brokers(service: Service) -> Response:
    return JsonResponse([broker_id(service)])


@router.get(
    "/brokers/health",
    summary="Writes a message and reads it back; `ok` when it came",
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
    summary="`ok` once the broker serves requests",
    responses={200: {"content": {"text/plain": {"example": "ok"}}}},
)
async def ready(service: Service) -> Response:
    return TextResponse("ok")


@router.get(
    "/brokers/version",
    summary="Version of this broker",
    responses={200: {"content": {"text/plain": {"example": "0.1.0"}}}},
)
async def version(service: Service) -> Response:
    from broker.http.app import product_version

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
        }
    },
)
async def leader(service: Service) -> Response:
    return JsonResponse({"serviceUrl": service.web_url, "brokerId": broker_id(service)})


@router.get("/brokers/configuration", summary="Names of settings that can change at run time: none")
async def dynamic_names(service: Service) -> Response:
    return JsonResponse([])


@router.get("/brokers/configuration/values", summary="Settings changed at run time")
async def dynamic_values(service: Service) -> Response:
    return JsonResponse({})


@router.get(
    "/brokers/configuration/runtime",
    summary="All settings in force, secrets masked",
    responses={200: {"content": {"application/json": {"example": {"clusterName": "standalone"}}}}},
)
async def runtime(service: Service) -> Response:
    return JsonResponse(service.config.as_keys())


@router.get("/brokers/internal-configuration", summary="Where the metadata lives")
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
    "/brokers/{cluster}",
    summary="Active brokers of a cluster",
    responses={200: {"content": {"application/json": {"example": ["127.0.0.1:8080"]}}}},
)
async def list_cluster_brokers(
    service: Service, cluster: Annotated[str, Path(examples=["standalone"])]
) -> Response:
    # Pulsar's broker doesn't look at the name either: every cluster lists its own brokers.
    return JsonResponse([broker_id(service)])


@router.get("/broker-stats/topics", summary="Statistics of all loaded topics, by bundle")
async def broker_topics(service: Service) -> Response:
    answer: dict[str, Any] = {}
    for number, topic in enumerate(list(service.topics.values())):
        name = topic.name
        bundle = (await service.bundles.bundle_of(str(name))).rpartition("/")[2]
        of_bundle = answer.setdefault(name.namespace, {}).setdefault(bundle, {})
        of_bundle.setdefault(name.domain, {})[str(name)] = topic.stats()
        if number % 16 == 15:
            await asyncio.sleep(0)  # long lists never hold the loop
    return JsonResponse(answer)
