"""Moving the metadata to another store: this broker keeps it where it is."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.responses import JsonResponse

router = APIRouter(prefix="/admin/v2/metadata", tags=["brokers"])


@router.get(
    "/migration/status",
    summary="State of moving the metadata to another store: it never began",
    responses={200: {"content": {"application/json": {"example": {"phase": "NOT_STARTED"}}}}},
)
async def status() -> Response:
    return JsonResponse({"phase": "NOT_STARTED"})


@router.post(
    "/migration/start",
    summary="Refused: the metadata stays where it is",
    responses={400: {"description": "No target"}, 501: {"description": "Always"}},
)
async def start(
    target: Annotated[str | None, Query(description="URL of the other store")] = None,
) -> Response:
    if not target:
        raise ApiError(400, "Target URL is required")
    raise ApiError(501, "Moving the metadata to another store is not supported")
