"""Lookup: which broker serves a topic, and in which bundle it is."""

from typing import Annotated
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from magnetar.broker.http.dependencies import Authoritative, Service, Topic, flag
from magnetar.broker.http.errors import ApiError, answer_for
from magnetar.broker.http.parameters import Header, Query
from magnetar.broker.http.responses import JsonResponse, TextResponse
from magnetar.broker.http.routing.route import Access, Routes, RoutingMode
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.service.broker_service import BrokerService
from magnetar.bundles.errors import BundleError
from magnetar.bundles.lookup import BrokerLookup
from magnetar.bundles.ownership import Redirect

routes = Routes("/lookup/v2", tag="lookup", access=Access.LOOKUP_401, mode=RoutingMode.LOCAL)

_EXAMPLE = {
    "brokerUrl": "pulsar://127.0.0.1:6650",
    "httpUrl": "http://127.0.0.1:8080",
    "nativeUrl": "pulsar://127.0.0.1:6650",
    "brokerUrlSsl": "",
}


@routes.get(
    "/topic/{domain}/{tenant}/{namespace}/{topic}",
    "The broker that serves a topic",
    example=_EXAMPLE,
    statuses={
        404: "No such namespace or partition, or no such topic while creation is off",
        307: "Nobody owns it: another broker is to, or finds out which one is",
        412: "No such listener",
        503: "No broker can take it now",
    },
)
@routes.get("/destination/{domain}/{tenant}/{namespace}/{topic}", "", include_in_schema=False)
async def lookup(
    request: Request,
    service: Service,
    topic: Topic,
    authoritative: Authoritative = None,
    placement: Annotated[
        str | None,
        Query(
            description="`true`: also of a topic that doesn't exist and that clients can't make: "
            "what brokers ask the leader"
        ),
    ] = None,
    listenerName: Annotated[str | None, Query(description="Of advertisedListeners")] = None,
    x_pulsar_listenername: Annotated[
        str | None, Header(description="The same as `listenerName`")
    ] = None,
) -> Response:
    await _require(service, topic, existing=not flag(placement))
    with answer_for(BundleError, 503):
        found = await service.bundles.lookup(str(topic), authoritative=flag(authoritative))
    if found is None:
        return Response(status_code=503)
    broker = found.broker
    if listener := listenerName or x_pulsar_listenername:
        if (reached := broker.by_listener(listener)) is None:
            raise ApiError(412, f"the broker do not have {listener:.100} listener")
        broker = reached
    if isinstance(found, Redirect):
        return _redirection(request, broker, found.authoritative)
    urls = {
        "brokerUrl": broker.broker_url,
        "brokerUrlTls": broker.broker_url_tls,
        "httpUrl": broker.http_url,
        "httpUrlTls": broker.http_url_tls,
        "nativeUrl": broker.broker_url,
        "brokerUrlSsl": broker.broker_url_tls or "",
    }
    return JsonResponse({name: url for name, url in urls.items() if url is not None})


def _redirection(request: Request, broker: BrokerLookup, authoritative: bool) -> Response:
    """To the broker that is to own the topic, or that finds out which one is."""
    base = broker.http_url_tls if request.url.scheme == "https" else broker.http_url
    if not base:
        return Response(status_code=503)
    raw: bytes = request.scope.get("raw_path") or request.url.path.encode()
    path = raw.partition(b"?")[0].decode("latin-1")
    query = request.query_params.multi_items()
    kept = [(name, text) for name, text in query if name != "authoritative"]
    text = urlencode([*kept, ("authoritative", str(authoritative).lower())])
    return Response(status_code=307, headers={"Location": f"{base.rstrip('/')}{path}?{text}"})


@routes.get(
    "/topic/{domain}/{tenant}/{namespace}/{topic}/bundle",
    access=Access.LOOKUP_403,
    text="0x80000000_0xc0000000",
    statuses={404: "No such namespace"},
)
async def bundle(service: Service, topic: Topic) -> Response:
    """The bundle of a topic."""
    if await service.resources.policies(topic.namespace) is None:
        raise ApiError(404, "Namespace not found")
    return TextResponse((await service.bundles.bundle_of(str(topic))).rpartition("/")[2])


async def _require(service: BrokerService, topic: TopicName, *, existing: bool) -> None:
    """Raises ApiError: 404.

    Args:
        existing: the topic is there, or may be made by who is sent to its broker.
    """
    if await service.resources.policies(topic.namespace) is None:
        raise ApiError(404, "Namespace not found")
    if not existing:
        return
    if topic.is_partition and topic.is_persistent and not await service.directory.exists(topic):
        count = await service.directory.partitions(topic.base)
        if count is not None and topic.partition_index >= count:
            raise ApiError(404, f"Topic not found {topic}")
    if not service.config.allow_auto_topic_creation and not (
        await service.directory.partitions(topic) is not None
        or await service.directory.exists(topic)
    ):
        raise ApiError(404, f"Topic {topic} not found")
