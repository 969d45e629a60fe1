"""Requests about what another broker serves are sent there (http-api 1.5): 307 with its address.

Most are before their route runs (places.py). Others just ask for their topic or bundle, and so may
any whose bundle moves meanwhile: when that fails because another broker owns it, the handlers of
errors ask here where the request belongs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.responses import Response

from broker.http.dependencies import make_topic_name
from broker.http.errors import ApiError
from broker.http.raw_path import form_decode
from broker.service.peers import Peer, as_authoritative, busy_bundle
from bundles.errors import BundleBusyError, BundleError
from metadata.errors import MetadataError

if TYPE_CHECKING:
    from starlette.requests import Request

    from broker.service.broker_service import BrokerService

__all__ = ["location_at", "redirection", "require_owner"]


async def require_owner(service: BrokerService, bundle: str) -> None:
    """For calls that do nothing where the bundle isn't owned. Raises BundleBusyError."""
    if await service.peers.other_owner(bundle) is not None:
        raise BundleBusyError(bundle)


async def redirection(request: Request, error: Exception) -> Response | None:
    """The answer to a request that another broker can serve; None: it can't either.

    A call about a partitioned topic stays: its partitions may be anywhere, so that brokers would
    send the request back and forth. Its route asks the brokers of the partitions (fan_out.py).
    """
    if (bundle := busy_bundle(error)) is None:
        return None
    service: BrokerService = request.app.state.service
    try:
        if await _bundle_of(service, request) != bundle:
            return None
        owner = await service.peers.other_owner(bundle)
    except (ApiError, BundleError, MetadataError):
        return None  # what was wrong first is told
    if owner is None:  # it is changing hands right now
        return None
    if (location := location_at(Peer.of(owner), request)) is None:
        return None
    return Response(status_code=307, headers={"Location": location})


def location_at(owner: Peer, request: Request, path: str | None = None) -> str | None:
    """The same request at another broker; None: it doesn't serve this scheme.

    Args:
        path: what is to be asked there instead, encoded.
    """
    base = owner.http_url_tls if request.url.scheme == "https" else owner.http_url
    if not base:
        return None
    here = urlsplit(str(request.url))
    raw: bytes = request.scope.get("raw_path") or here.path.encode()
    path = path or raw.partition(b"?")[0].decode("latin-1")
    query = as_authoritative(here.query) if owner.is_chosen else here.query
    return base.rstrip("/") + path + (f"?{query}" if query else "")


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
