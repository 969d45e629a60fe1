"""/metrics: Prometheus text under Pulsar's names (http-api 7)."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from broker.http.dependencies import Service
from broker.http.metrics import render_metrics

__all__ = ["router"]

router = APIRouter(tags=["metrics"])

_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@router.get(
    "/metrics",
    summary="Prometheus metrics",
    responses={
        200: {"content": {"text/plain": {"example": 'pulsar_broker_topics_count{cluster="c"} 4'}}}
    },
)
async def metrics(request: Request, service: Service) -> Response:
    state = request.app.state
    page = await render_metrics(service, state.http_figures, state.cache_rates)
    return Response(page, media_type=_TYPE)
