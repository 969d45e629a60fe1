"""Liveness for load balancers: /status.html and /ready (http-api 1.1, trap 37)."""

from __future__ import annotations

from pathlib import Path as FilePath

from fastapi import APIRouter, Response

from broker.http.dependencies import Service
from broker.http.errors import ApiError
from broker.http.responses import TextResponse

__all__ = ["router"]

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
