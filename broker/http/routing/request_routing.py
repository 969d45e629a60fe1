"""Where in a cluster a request is served: one table for all routes, asked in front of each.

    HERE       any broker: it is about the metadata store, or about the asked broker itself
    TOPIC      the broker that serves the topic: 307; of a partitioned topic the asked one, which
               refuses, or asks the brokers of the partitions (scatter_gather.py)
    LOADED     the same for routes that load their topic first of all: they learn it from that, and
               need no look-up of their own (redirects.py), unless they were sent here to take it
    HOME       the broker that serves the topic of that name, or would if it had no partitions: it
               has the sessions of REST consumers, so that each call of one finds it: 307
    BUNDLE     the owner of the bundle in the path: 307; the asked broker if nobody owns it
    HELD       the same for what is done to the bundle's topics: if nobody owns it, who is chosen to
    BROKER     the broker that the path names: 307
    OWNERS     the asked broker, which asks the owners of all bundles of the namespace
    (scatter_gather.py)

Nobody is sent round in circles: a request goes to whom the ownership node names, who serves it, or
to whom the leader has chosen to own what nobody does; who is asked so, by ``authoritative=true``,
takes it and asks nobody again.
"""

from __future__ import annotations

import functools
import re
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from fastapi import Request

from magnetar.broker.cluster.broker_client import BrokerEndpoint
from magnetar.broker.errors import BrokerError
from magnetar.broker.http.dependencies import flag, make_namespace
from magnetar.broker.http.errors import ApiError, RedirectError
from magnetar.broker.http.middleware.raw_path import form_decode
from magnetar.broker.http.routing.redirects import location_at, named_topic, whom_to_ask
from magnetar.bundles.errors import BundleError
from magnetar.metadata.errors import MetadataError

if TYPE_CHECKING:
    from magnetar.broker.protocol.topic_name import TopicName
    from magnetar.broker.service.broker_service import BrokerService


class RoutingMode(Enum):
    LOCAL = auto()
    TOPIC = auto()
    OWNER_IF_LOADED = auto()
    HASHED = auto()
    BUNDLE = auto()
    ACQUIRE = auto()
    BROKER = auto()
    SCATTER = auto()


_NAMESPACE: Final = r"/admin/v2/namespaces/\{tenant\}/\{namespace\}"
_DOMAIN: Final = r"/admin/v2/(\{domain\}|persistent|non-persistent)/\{tenant\}/\{namespace\}"
_TOPIC: Final = rf"{_DOMAIN}/\{{topic\}}"
_ABSENT: Final = "functions|sources?|sinks?|worker|worker-stats|packages|transactions"
_OF_CLUSTER: Final = (
    "tenants|clusters|brokers|broker-stats|bookies|resource-quotas|resourcegroups|metadata|schemas"
)
_BACKLOG: Final = r"(clearBacklog(/\{subscription\})?|unsubscribe/\{subscription\})"
_OPERATIONS: Final = (
    "subscriptions|subscription/.*|all_subscription/.*|stats|internalStats|backlog|backlogSize"
    "|lastMessageId|getMessageIdByIndex|messageid/.*|ledger/.*|examinemessage|terminate|truncate"
    "|trim|compaction|offload|unload|properties|segments"
)
_ANY, _GET = "GET|PUT|POST|DELETE|PATCH", "GET"

# Methods, template (as a regular expression, to be matched whole), place. The first one holds.
_TABLE: Final = tuple(
    (frozenset(methods.split("|")), re.compile(template), place)
    for methods, template, place in (
        (
            _GET,
            r"/(metrics|status\.html|ready|livez|readyz|openapi\.json|docs.*|)",
            RoutingMode.LOCAL,
        ),
        (_ANY, r"/topics/.*/subscription/.*", RoutingMode.HASHED),
        (_ANY, r"/topics/.*", RoutingMode.OWNER_IF_LOADED),
        ("PUT|DELETE", _TOPIC, RoutingMode.TOPIC),
        (_ANY, rf"{_TOPIC}/({_OPERATIONS})", RoutingMode.TOPIC),
        # Whether a volatile topic exists is known to its broker only.
        (_GET, rf"{_TOPIC}/partitions", RoutingMode.TOPIC),
        (_ANY, rf"{_TOPIC}/permissions(/.*)?", RoutingMode.TOPIC),
        # Partitions, policies: documents, and what fans out in any case.
        (_ANY, rf"{_TOPIC}/.*", RoutingMode.LOCAL),
        (_GET, r"/admin/v2/non-persistent/\{tenant\}/\{namespace\}/\{bundle\}", RoutingMode.BUNDLE),
        (_GET, _DOMAIN, RoutingMode.SCATTER),
        (_GET, rf"{_DOMAIN}/partitioned", RoutingMode.LOCAL),
        (_ANY, rf"{_NAMESPACE}/\{{bundle\}}/{_BACKLOG}", RoutingMode.ACQUIRE),
        (_ANY, rf"{_NAMESPACE}/\{{bundle\}}/(unload|topicHashPositions)", RoutingMode.BUNDLE),
        ("DELETE", rf"{_NAMESPACE}/\{{bundle\}}", RoutingMode.ACQUIRE),
        # Its bundle may be a word, LARGEST: the route itself finds out which one that is.
        ("PUT", rf"{_NAMESPACE}/\{{bundle\}}/split", RoutingMode.OWNER_IF_LOADED),
        (_ANY, rf"{_NAMESPACE}/({_BACKLOG}|unload|topics)", RoutingMode.SCATTER),
        ("DELETE", _NAMESPACE, RoutingMode.SCATTER),
        ("DELETE", r"/admin/v2/tenants/\{tenant\}", RoutingMode.SCATTER),
        (_GET, r"/admin/v2/brokers/\{cluster\}/\{broker\}/ownedNamespaces", RoutingMode.BROKER),
        (_ANY, r"/admin/v2/namespaces(/.*)?", RoutingMode.LOCAL),
        (_ANY, rf"/admin/v2/({_OF_CLUSTER})(/.*)?", RoutingMode.LOCAL),
        (_ANY, rf"/admin/v[23]/({_ABSENT})(/.*)?", RoutingMode.LOCAL),
        (_GET, r"/lookup/v2/.*", RoutingMode.LOCAL),
    )
)


@functools.lru_cache(maxsize=1024)  # one for each route
def routing_mode_of(method: str, template: str) -> RoutingMode | None:
    """Where a route is served; None: the table lacks it.

    Args:
        template: the route's path as it was declared; convertors (``{domain:domain}``) don't count.
    """
    method = "GET" if method == "HEAD" else method
    plain = re.sub(r":[a-z]+\}", "}", template)
    for methods, pattern, place in _TABLE:
        if method in methods and pattern.fullmatch(plain):
            return place
    return None


_SENT: Final = frozenset(
    {
        RoutingMode.TOPIC,
        RoutingMode.HASHED,
        RoutingMode.BUNDLE,
        RoutingMode.ACQUIRE,
        RoutingMode.BROKER,
    }
)


async def send_to_owner(request: Request) -> None:
    """In front of every route, behind its authorization.

    Raises:
        RedirectError: another broker serves it. ApiError: 404, 412: the path names nothing.
    """
    scope = request.scope
    place = routing_mode_of(scope["method"], scope["route"].path)
    names: dict[str, str] = scope["path_params"]
    is_chosen = b"authoritative" in scope["query_string"] and flag(
        request.query_params.get("authoritative")
    )
    if place not in _SENT and not (
        place is RoutingMode.OWNER_IF_LOADED and is_chosen and "topic" in names
    ):
        return
    service: BrokerService = scope["app"].state.service
    try:
        match place:
            case RoutingMode.TOPIC | RoutingMode.HASHED | RoutingMode.OWNER_IF_LOADED:
                topic = named_topic(names)
                if place is not RoutingMode.HASHED and await _is_partitioned(service, topic):
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
    return str(topic) not in service.topics and await service.partitions(topic) is not None


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
