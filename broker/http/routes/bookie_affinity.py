"""Groups of bookies that a namespace's ledgers are kept on."""

from typing import Annotated, Any, Final

from starlette.responses import Response

from magnetar.broker.http.dependencies import Namespace, Service, body_doc
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.parameters import Depends
from magnetar.broker.http.policies.policy_access import ABSENT, JsonBody
from magnetar.broker.http.responses import JsonResponse
from magnetar.broker.http.routing.route import Access, Routes, RoutingMode
from magnetar.broker.policies.bookie_affinity import (
    AFFINITY_EXAMPLE,
    AFFINITY_PATH,
    AFFINITY_SCHEMA,
)
from magnetar.broker.policies.values import Text
from magnetar.bundles.bookie_affinity import BookieAffinity

_PATH: Final = "/{tenant}/{namespace}/" + AFFINITY_PATH

routes = Routes(
    "/admin/v2/namespaces",
    tag="namespaces",
    access=Access.SUPERUSER,
    mode=RoutingMode.LOCAL,
    statuses=ABSENT,
)


async def _existing(service: Service, namespace: Namespace) -> str:
    if await service.resources.policies(namespace) is None:
        raise ApiError(404, "Namespace not found")
    return namespace


Existing = Annotated[str, Depends(_existing)]


@routes.get(
    _PATH,
    example=AFFINITY_EXAMPLE,
    statuses={200: "An empty body: it has none", 404: "No such namespace, or it was never used"},
)
async def get_bookie_affinity(service: Service, namespace: Existing) -> Response:
    """Get: groups of bookies that store its ledgers."""
    factory = service.bundles.factory
    if not await factory.is_stored(namespace):
        raise ApiError(404, "Namespace local-policies does not exist")
    affinity = await factory.bookie_affinity(namespace)
    return Response() if affinity is None else JsonResponse(affinity.to_stored())


@routes.post(
    _PATH,
    statuses={400: "Not groups"},
    body=body_doc(AFFINITY_SCHEMA, AFFINITY_EXAMPLE),
)
async def set_bookie_affinity(service: Service, namespace: Existing, body: JsonBody) -> None:
    """Set: groups of bookies that store its ledgers, from each topic's next ledger on."""
    await service.bundles.factory.set_bookie_affinity(namespace, _affinity_of(body))


@routes.delete(_PATH)
async def remove_bookie_affinity(service: Service, namespace: Existing) -> None:
    """Unset: groups of bookies that store its ledgers."""
    await service.bundles.factory.set_bookie_affinity(namespace, None)


def _affinity_of(body: Any) -> BookieAffinity | None:
    if body is None:
        return None
    if not isinstance(body, dict):
        raise ApiError(400, f"{body!r:.60} is not an object with groups of bookies")
    return BookieAffinity(*(_group(body, name) for name in AFFINITY_EXAMPLE))


def _group(body: dict[str, Any], name: str) -> str | None:
    value = body.get(name)
    if isinstance(value, bool):
        value = str(value).lower()
    elif isinstance(value, int | float):
        value = str(value)  # as Pulsar takes it
    return None if value is None else Text().parse(value, name)
