"""Liveness and readiness: /livez, /readyz; Pulsar's /status.html, /ready."""

from pathlib import Path as FilePath

from starlette.responses import Response

from magnetar.bookkeeper.probes import readiness_document
from magnetar.broker.http.dependencies import Service
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.responses import JsonResponse, TextResponse
from magnetar.broker.http.routing.route import Access, Routes, RoutingMode

routes = Routes(tag="health", access=Access.FREE, mode=RoutingMode.LOCAL)


@routes.get(
    "/status.html", text="OK", statuses={404: "`statusFilePath` is set and that file is missing"}
)
async def status(service: Service) -> Response:
    """`OK` while the broker takes requests."""
    if not service.ready:
        raise ApiError(503, "Not ready: the broker is starting or stopping")
    path = service.config.status_file_path
    # One stat of a local file; operators remove it to take the broker out of rotation.
    if path and not FilePath(path).exists():  # noqa: ASYNC240 - see above
        raise ApiError(404, "Not ready: the status file is missing")
    return TextResponse("OK")


@routes.get("/ready", "`ok` once the broker serves requests", text="ok")
async def ready(service: Service) -> Response:
    if not service.ready:
        raise ApiError(503, "Not ready: the broker is starting or stopping")
    return TextResponse("ok")


@routes.get("/livez", example={"status": "alive"})
async def alive() -> Response:
    """200 while the process answers, whatever ZooKeeper and bookies do."""
    return JsonResponse({"status": "alive"})


@routes.get(
    "/readyz",
    example={"status": "ready"},
    statuses={
        503: {
            "description": "Not now",
            "content": {"application/json": {"example": {"reason": "starting or stopping"}}},
        }
    },
)
async def ready_for_clients(service: Service) -> Response:
    """200 while clients should be sent here, else 503 with the reasons.

    Registered among the cluster's brokers, the metadata store answers, not draining.
    """
    trouble = await service.readiness.trouble()
    document = readiness_document([] if trouble is None else [trouble.reason])
    return JsonResponse(document, 200 if trouble is None else 503)
