"""Requests about what another broker serves are sent there (http-api 1.5): 307 with its address.

A route just asks for its topic or bundle. When that fails because another broker owns the bundle,
the handlers of errors ask here where the request belongs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.responses import Response

from broker.http.dependencies import make_topic_name
from broker.http.errors import ApiError
from broker.http.raw_path import form_decode
from bundles.errors import BundleBusyError, BundleError
from bundles.lookup import BrokerLookup
from bundles.ownership import OWNERS_ROOT
from metadata.errors import MetadataError

if TYPE_CHECKING:
    from starlette.requests import Request

    from broker.service.broker_service import BrokerService

__all__ = ["other_owner", "redirection", "require_owner"]


def _busy_bundle(error: BaseException) -> str | None:
    """The bundle, if that another broker owns it is why ``error`` was raised."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, BundleBusyError):
        cause = cause.__cause__
    return None if cause is None else cause.bundle


async def other_owner(service: BrokerService, bundle: str) -> BrokerLookup | None:
    """The broker that owns ``tenant/ns/range``; None: this one does, or nobody.

    Raises:
        MetadataError, InvalidBundleError: it can't be told.
    """
    if bundle in service.bundles.owned_bundles:
        return None
    if (node := await service.store.get(f"{OWNERS_ROOT}/{bundle}")) is None:
        return None
    owner = BrokerLookup.decode(node.value)
    return None if owner == service.bundles.broker else owner


async def require_owner(service: BrokerService, bundle: str) -> None:
    """For calls that do nothing where the bundle isn't owned. Raises BundleBusyError."""
    if await other_owner(service, bundle) is not None:
        raise BundleBusyError(bundle)


async def redirection(request: Request, error: Exception) -> Response | None:
    """The answer to a request that another broker can serve; None: it can't either.

    A call about a partitioned topic stays: its partitions may be anywhere, so that brokers would
    send the request back and forth. Who makes it calls the partitions one by one.
    """
    if (bundle := _busy_bundle(error)) is None:
        return None
    service: BrokerService = request.app.state.service
    try:
        if await _bundle_of(service, request) != bundle:
            return None
        owner = await other_owner(service, bundle)
    except (ApiError, BundleError, MetadataError):
        return None  # what was wrong first is told
    if owner is None:  # it is changing hands right now
        return None
    base = owner.http_url_tls if request.url.scheme == "https" else owner.http_url
    if not base:
        return None
    here = urlsplit(str(request.url))
    raw: bytes = request.scope.get("raw_path") or here.path.encode()
    path, query = raw.partition(b"?")[0].decode("latin-1"), here.query
    location = base.rstrip("/") + path + (f"?{query}" if query else "")
    return Response(status_code=307, headers={"Location": location})


async def _bundle_of(service: BrokerService, request: Request) -> str:
    """The bundle that the path names, itself or by a topic; empty: none."""
    names = request.path_params
    if "topic" in names:
        domain = names.get("domain", "persistent")
        topic = make_topic_name(domain, names["tenant"], names["namespace"], names["topic"])
        return await service.bundles.bundle_of(str(topic))
    if "bundle" in names:
        parts = (names["tenant"], names["namespace"], names["bundle"])
        return "/".join(map(form_decode, parts))
    return ""
