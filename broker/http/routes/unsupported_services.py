"""Services that Pulsar's tools ask for and this broker doesn't have.

They get the statuses of a Pulsar broker where these services are switched off: tools tolerate
those on their overview pages, and a plain 404 they don't.
"""

from typing import Final

from starlette.responses import Response

from magnetar.broker.http.errors import error_response
from magnetar.broker.http.routing.route import Access, Routes, RoutingMode

routes = Routes(access=Access.FREE, mode=RoutingMode.LOCAL, include_in_schema=False)

_METHODS: Final = ("GET", "PUT", "POST", "DELETE")
_FUNCTIONS: Final = (
    "Pulsar Function Worker is not enabled, probably functionsWorkerEnabled is set to false"
)
_FUNCTION_PATHS: Final = ("functions", "source", "sources", "sink", "sinks")
_SERVICES: Final = (
    *((409, f"/admin/v3/{name}", _FUNCTIONS) for name in _FUNCTION_PATHS),
    *(
        (409, f"/admin/v2/{name}", _FUNCTIONS)
        for name in ("functions", "sources", "sinks", "worker", "worker-stats")
    ),
    (503, "/admin/v3/packages", "Package Management Service is not enabled in the broker."),
)


def _refuse(status: int, prefix: str, reason: str) -> None:
    async def refuse() -> Response:
        return error_response(status, reason)

    for path in (prefix, prefix + "/{rest:path}"):
        for method in _METHODS:
            routes.declare(method, path, refuse, "")


for each in _SERVICES:
    _refuse(*each)
