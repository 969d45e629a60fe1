"""Liveness and readiness: /livez, /readyz; Pulsar's /status.html, /ready."""

from __future__ import annotations

from pathlib import Path as FilePath

from fastapi import APIRouter, Response

from magnetar.bookkeeper.probes import readiness_document
from magnetar.broker.http.dependencies import Service
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.responses import JsonResponse, TextResponse

router = APIRouter(tags=["health"])


@router.get(
    "/status.html",
    summary="`OK` while the broker takes requests",
    responses={
        200: {"content": {"text/plain": {"example": "OK"}}},
        404: {"description": "`statusFilePath` is set and that file is missing"},
    },
)
async def status(service: Service) -> Response:
    if not service.ready:
        raise ApiError(503, "Not ready: the broker is starting or stopping")
    path = service.config.status_file_path
    # One stat of a local file; operators remove it to take the broker out of rotation.
    if path and not FilePath(path).exists():  # noqa: ASYNC240 - see above
        raise ApiError(404, "Not ready: the status file is missing")
    return TextResponse("OK")


@router.get(
    "/ready",
    summary="`ok` once the broker serves requests",
    responses={200: {"content": {"text/plain": {"example": "ok"}}}},
)
async def ready(service: Service) -> Response:
    if not service.ready:
        raise ApiError(503, "Not ready: the broker is starting or stopping")
    return TextResponse("ok")


@router.get(
    "/livez",
    summary="200 while the process answers, whatever ZooKeeper and bookies do",
    responses={200: {"content": {"application/json": {"example": {"status": "alive"}}}}},
)
async def alive() -> Response:
    return JsonResponse({"status": "alive"})


@router.get(
    "/readyz",
    summary="200 while clients should be sent here, else 503 with the reasons",
    description="Registered among the cluster's brokers, the metadata store answers, not draining.",
    responses={
        200: {"content": {"application/json": {"example": {"status": "ready"}}}},
        503: {
            "description": "Not now",
            "content": {"application/json": {"example": {"reason": "starting or stopping"}}},
        },
    },
)
async def ready_for_clients(service: Service) -> Response:
    reasons = await service.readiness.reasons()
    return JsonResponse(readiness_document(reasons), 503 if reasons else 200)
