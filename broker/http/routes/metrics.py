"""/metrics: Prometheus text under Pulsar's names."""

from collections.abc import AsyncIterator

from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from magnetar.broker.http.dependencies import Service
from magnetar.broker.http.long_answers import allow_compression
from magnetar.broker.http.metrics.metrics import metrics_pieces
from magnetar.broker.http.routing.route import Access, Routes, RoutingMode

routes = Routes(tag="metrics", access=Access.FREE, mode=RoutingMode.LOCAL)

_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@routes.get("/metrics", "Prometheus metrics", text='pulsar_broker_topics_count{cluster="c"} 4')
async def metrics(request: Request, service: Service) -> Response:
    app = request.app
    pieces = metrics_pieces(
        service, app.state.http_figures, app.state.cache_rates, version=app.version
    )
    first = await anext(pieces)
    second = await anext(pieces, None)
    if second is None:
        return Response(first, media_type=_TYPE)
    if request.scope["http_version"] == "1.0":  # whose clients know no chunks
        return Response(
            b"".join([first, second, *[each async for each in pieces]]), 200, None, _TYPE
        )
    allow_compression(request.scope)
    return StreamingResponse(_chain(first, second, pieces), media_type=_TYPE)


async def _chain(first: bytes, second: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    yield second
    async for piece in rest:
        yield piece
