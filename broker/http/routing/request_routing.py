"""Where in a cluster a request is served: the modes that routes declare, and what they do.

No request goes round in circles: it is sent to the broker that the ownership node names, which
serves it, or to the one that the leader has chosen for a bundle without an owner. That broker,
asked by ``authoritative=true``, takes the bundle and asks no other again.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from starlette.requests import Request

from magnetar.broker.cluster.broker_client import BrokerEndpoint
from magnetar.broker.errors import BrokerError, ServiceNotReadyError
from magnetar.broker.http.dependencies import flag, form_decode, make_namespace
from magnetar.broker.http.errors import ApiError, RedirectError
from magnetar.broker.http.routing.redirects import location_at, named_topic, whom_to_ask
from magnetar.bundles.errors import BundleError
from magnetar.metadata.errors import MetadataError

if TYPE_CHECKING:
    from magnetar.broker.protocol.topic_name import TopicName
    from magnetar.broker.service.broker_service import BrokerService


class RoutingMode(Enum):
    LOCAL = auto()
    """The broker that gets the request answers it, whichever it is."""
    TOPIC = auto()
    """Redirect (307) to the broker that serves the topic. For a partitioned topic the asked broker
    answers: it refuses, or asks the brokers of the partitions (scatter_gather.py).
    """
    OWNER_IF_LOADED = auto()
    """Don't look up the owner: the route loads its topic, which redirects if another broker owns
    it (redirects.py). With ``authoritative=true``, route as TOPIC: this broker may have to acquire
    the bundle first.
    """
    HASHED = auto()
    """Redirect (307) to the owner of the bundle of the topic's name, for partitioned topics, too.
    This broker keeps the sessions of REST consumers, so all calls of a session reach it.
    """
    BUNDLE = auto()
    """Redirect (307) to the owner of the bundle in the path; the asked broker answers if no broker
    owns it.
    """
    ACQUIRE = auto()
    """Redirect (307) to the owner of the bundle in the path; if no broker owns it, to the broker
    that is chosen to acquire it.
    """
    BROKER = auto()
    """Redirect (307) to the broker that the path names."""
    SCATTER = auto()
    """The asked broker asks the owners of all bundles of the namespace, and answers."""


_SENT: Final = frozenset(RoutingMode) - {
    RoutingMode.LOCAL,
    RoutingMode.OWNER_IF_LOADED,
    RoutingMode.SCATTER,
}


async def send_to_owner(request: Request, mode: RoutingMode) -> None:
    """In front of every route, behind its authorization.

    Raises:
        RedirectError: another broker serves it. ApiError: 404, 412: the path names nothing.
        ServiceNotReadyError: nobody can tell yet.
    """
    scope = request.scope
    names: dict[str, str] = scope["path_params"]
    is_chosen = b"authoritative" in scope["query_string"] and flag(
        request.query_params.get("authoritative")
    )
    if mode not in _SENT and not (
        mode is RoutingMode.OWNER_IF_LOADED and is_chosen and "topic" in names
    ):
        return
    service: BrokerService = scope["app"].state.service
    if not service.has_started:
        raise ServiceNotReadyError("The broker is starting")
    try:
        match mode:
            case RoutingMode.TOPIC | RoutingMode.HASHED | RoutingMode.OWNER_IF_LOADED:
                topic = named_topic(names)
                if mode is not RoutingMode.HASHED and await _is_partitioned(service, topic):
                    return
                owner = await _owner_of_topic(service, topic, is_chosen=is_chosen)
            case RoutingMode.BUNDLE:
                found = await service.broker_client.other_owner(_bundle(names))
                owner = None if found is None else BrokerEndpoint.of(found)
            case RoutingMode.ACQUIRE:
                owner = await _holder(service, _bundle(names), is_chosen=is_chosen)
            case _:
                owner = await _named_broker(service, form_decode(names["broker"]))
    except (BrokerError, BundleError, MetadataError, ValueError):
        return  # the route itself finds out, and says it better
    if owner is not None and (location := location_at(owner, request)) is not None:
        raise RedirectError(location)


async def _is_partitioned(service: BrokerService, topic: TopicName) -> bool:
    # Loaded topics have no partitions, and are what is asked about most.
    return (
        str(topic) not in service.topics and await service.directory.partitions(topic) is not None
    )


async def _owner_of_topic(
    service: BrokerService, topic: TopicName, *, is_chosen: bool
) -> BrokerEndpoint | None:
    """Who serves it, or is to; None: this broker.

    Args:
        is_chosen: who sent the request here says that this broker is to take what nobody owns.
    """
    full = str(topic)
    if full in service.topics or service.bundles.owns_nowait(full):
        return None
    if not await service.resources.namespace_exists(topic.namespace):
        return None  # made-up names are not to be owned
    if not is_chosen:
        return await service.broker_client.owner_of(topic)
    return await whom_to_ask(service, await service.bundles.bundle_of(full), is_chosen=True)


def _bundle(names: dict[str, str]) -> str:
    """Raises ApiError: 404, 412."""
    namespace = make_namespace(names["tenant"], names["namespace"])
    return f"{namespace}/{form_decode(names['bundle'])}"


async def _holder(service: BrokerService, bundle: str, *, is_chosen: bool) -> BrokerEndpoint | None:
    namespace = bundle.rpartition("/")[0]
    if not await service.resources.namespace_exists(namespace):
        return None
    if bundle not in (await service.bundles.bundles(namespace)).names:
        return None  # made-up ranges are not to be owned
    return await whom_to_ask(service, bundle, is_chosen=is_chosen)


async def _named_broker(service: BrokerService, broker: str) -> BrokerEndpoint | None:
    if broker == service.broker_id:
        return None
    found = await service.cluster_members.find(broker)
    if found is None:
        raise ApiError(404, f"Broker id '{broker}' not found in available brokers.")
    return BrokerEndpoint.of(found)
