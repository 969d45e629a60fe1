"""/metrics: Prometheus text under Pulsar's names."""

from starlette.requests import Request
from starlette.responses import Response

from magnetar.broker.http.dependencies import Service
from magnetar.broker.http.metrics.metrics import metrics_of
from magnetar.broker.http.routing.route import Access, Routes, RoutingMode
from magnetar.broker.http.streamed_answers import in_pieces

routes = Routes(tag="metrics", access=Access.FREE, mode=RoutingMode.LOCAL)

_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@routes.get("/metrics", "Prometheus metrics", text='pulsar_broker_topics_count{cluster="c"} 4')
async def metrics(request: Request, service: Service) -> Response:
    return await in_pieces(request, metrics_of(request.app, service), _TYPE)
