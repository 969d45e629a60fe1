"""Requests about what another broker serves are sent there: 307 with its address.

Most are before their route runs (request_routing.py). Others just ask for their topic or bundle,
and so may any whose bundle moves meanwhile: when that fails because another broker owns it, the
handlers of errors ask here where the request belongs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.responses import Response

from magnetar.broker.cluster.broker_client import BrokerEndpoint, as_authoritative, busy_bundle
from magnetar.broker.http.dependencies import flag, form_decode, make_topic_name
from magnetar.broker.http.errors import ApiError
from magnetar.bundles.errors import BundleBusyError, BundleError
from magnetar.bundles.ownership import Redirect
from magnetar.metadata.errors import MetadataError

if TYPE_CHECKING:
    from starlette.requests import Request

    from magnetar.broker.protocol.topic_name import TopicName
    from magnetar.broker.service.broker_service import BrokerService

_DIGITS_MAX = 10


async def require_owner(service: BrokerService, bundle: str) -> None:
    """For calls that do nothing where the bundle isn't owned. Raises BundleBusyError."""
    if await service.broker_client.other_owner(bundle) is not None:
        raise BundleBusyError(bundle)


async def whom_to_ask(
    service: BrokerService, bundle: str, *, is_chosen: bool
) -> BrokerEndpoint | None:
    """The broker that owns a bundle, is to own it, or finds out its owner.

    None: this broker, which has it now.

    Args:
        is_chosen: who sent the request here says that this broker is to take what nobody owns.
    Raises:
        BundleError: retriable; it can't be told now.
    """
    found = await service.bundles.lookup_bundle(bundle, authoritative=is_chosen)
    if found is None or found.broker == service.bundles.broker:
        return None
    return BrokerEndpoint.of(
        found.broker, is_chosen=isinstance(found, Redirect) and found.authoritative
    )


async def redirection(request: Request, error: Exception) -> Response | None:
    """The answer to a request that another broker can serve; None: it can't either.

    A call about a partitioned topic stays: its partitions may be anywhere, so that brokers would
    send the request back and forth. Its route asks the brokers of the partitions
    (scatter_gather.py).
    """
    if (bundle := busy_bundle(error)) is None:
        return None
    service: BrokerService = request.app.state.service
    try:
        if await _bundle_of(service, request) != bundle:
            return None
        is_chosen = flag(request.query_params.get("authoritative"))
        owner = await whom_to_ask(service, bundle, is_chosen=is_chosen)
    except (ApiError, BundleError, MetadataError):
        return None  # the first error is told
    if owner is None:  # it is changing hands right now
        return None
    if (location := location_at(owner, request)) is None:
        return None
    return Response(status_code=307, headers={"Location": location})


def location_at(owner: BrokerEndpoint, request: Request, path: str | None = None) -> str | None:
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
        return await service.bundles.bundle_of(str(named_topic(names)))
    if "bundle" in names:
        parts = (names["tenant"], names["namespace"], names["bundle"])
        return "/".join(map(form_decode, parts))
    return ""


def named_topic(names: dict[str, str]) -> TopicName:
    """The topic, or the partition, that a path names. Raises ApiError: 404, 412."""
    domain = names.get("domain", "persistent")
    topic = make_topic_name(domain, names["tenant"], names["namespace"], names["topic"])
    number = names.get("partition", "")
    # Python makes no number of more than 4,300 digits; the route refuses what is none.
    is_number = number.isascii() and number.isdigit() and len(number) <= _DIGITS_MAX
    return topic.partition(int(number)) if is_number else topic
