"""Where in a cluster a request is served: one table for all routes, asked in front of each.

    HERE       any broker: it is about the metadata store, or about the asked broker itself
    TOPIC      the broker that serves the topic: 307; of a partitioned topic the asked one, which
               refuses, or asks the brokers of the partitions (fan_out.py)
    LOADED     the same for routes that load their topic first of all: they learn it from that, and
               need no look-up of their own (redirects.py), unless they were sent here to take it
    HOME       the broker that serves the topic of that name, or would if it had no partitions: it
               has the sessions of REST consumers, so that each call of one finds it: 307
    BUNDLE     the owner of the bundle in the path: 307; the asked broker if nobody owns it
    HELD       the same for what is done to the bundle's topics: if nobody owns it, who is chosen to
    BROKER     the broker that the path names: 307
    OWNERS     the asked broker, which asks the owners of all bundles of the namespace (fan_out.py)

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

from broker.errors import BrokerError
from broker.http.dependencies import flag, make_namespace
from broker.http.errors import ApiError, RedirectError
from broker.http.raw_path import form_decode
from broker.http.redirects import location_at, named_topic, whom_to_ask
from broker.service.peers import Peer
from bundles.errors import BundleError
from metadata.errors import MetadataError

if TYPE_CHECKING:
    from broker.protocol.topic_name import TopicName
    from broker.service.broker_service import BrokerService

__all__ = ["Place", "place_of", "send_to_owner"]


class Place(Enum):
    HERE = auto()
    TOPIC = auto()
    LOADED = auto()
    HOME = auto()
    BUNDLE = auto()
    HELD = auto()
    BROKER = auto()
    OWNERS = auto()


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
        (_GET, r"/(metrics|status\.html|ready|livez|readyz|openapi\.json|docs.*|)", Place.HERE),
        (_ANY, r"/topics/.*/subscription/.*", Place.HOME),
        (_ANY, r"/topics/.*", Place.LOADED),
        ("PUT|DELETE", _TOPIC, Place.TOPIC),
        (_ANY, rf"{_TOPIC}/({_OPERATIONS})", Place.TOPIC),
        # Whether a volatile topic exists is known to its broker only.
        (_GET, rf"{_TOPIC}/partitions", Place.TOPIC),
        (_ANY, rf"{_TOPIC}/permissions(/.*)?", Place.TOPIC),
        # Partitions, policies: documents, and what fans out in any case.
        (_ANY, rf"{_TOPIC}/.*", Place.HERE),
        (_GET, r"/admin/v2/non-persistent/\{tenant\}/\{namespace\}/\{bundle\}", Place.BUNDLE),
        (_GET, _DOMAIN, Place.OWNERS),
        (_GET, rf"{_DOMAIN}/partitioned", Place.HERE),
        (_ANY, rf"{_NAMESPACE}/\{{bundle\}}/{_BACKLOG}", Place.HELD),
        (_ANY, rf"{_NAMESPACE}/\{{bundle\}}/(unload|topicHashPositions)", Place.BUNDLE),
        ("DELETE", rf"{_NAMESPACE}/\{{bundle\}}", Place.HELD),
        # Its bundle may be a word, LARGEST: the route itself finds out which one that is.
        ("PUT", rf"{_NAMESPACE}/\{{bundle\}}/split", Place.LOADED),
        (_ANY, rf"{_NAMESPACE}/({_BACKLOG}|unload|topics)", Place.OWNERS),
        ("DELETE", _NAMESPACE, Place.OWNERS),
        ("DELETE", r"/admin/v2/tenants/\{tenant\}", Place.OWNERS),
        (_GET, r"/admin/v2/brokers/\{cluster\}/\{broker\}/ownedNamespaces", Place.BROKER),
        (_ANY, r"/admin/v2/namespaces(/.*)?", Place.HERE),
        (_ANY, rf"/admin/v2/({_OF_CLUSTER})(/.*)?", Place.HERE),
        (_ANY, rf"/admin/v[23]/({_ABSENT})(/.*)?", Place.HERE),
        (_GET, r"/lookup/v2/.*", Place.HERE),
    )
)


@functools.lru_cache(maxsize=1024)  # one for each route
def place_of(method: str, template: str) -> Place | None:
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


_SENT: Final = frozenset({Place.TOPIC, Place.HOME, Place.BUNDLE, Place.HELD, Place.BROKER})


async def send_to_owner(request: Request) -> None:
    """In front of every route, behind its authorization.

    Raises:
        RedirectError: another broker serves it. ApiError: 404, 412: the path names nothing.
    """
    scope = request.scope
    place = place_of(scope["method"], scope["route"].path)
    names: dict[str, str] = scope["path_params"]
    is_chosen = b"authoritative" in scope["query_string"] and flag(
        request.query_params.get("authoritative")
    )
    if place not in _SENT and not (place is Place.LOADED and is_chosen and "topic" in names):
        return
    service: BrokerService = scope["app"].state.service
    try:
        match place:
            case Place.TOPIC | Place.HOME | Place.LOADED:
                topic = named_topic(names)
                if place is not Place.HOME and await _is_partitioned(service, topic):
                    return
                owner = await _owner_of_topic(service, topic, is_chosen=is_chosen)
            case Place.BUNDLE:
                found = await service.peers.other_owner(_bundle(names))
                owner = None if found is None else Peer.of(found)
            case Place.HELD:
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
) -> Peer | None:
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
        return await service.peers.owner_of(topic)
    return await whom_to_ask(service, await service.bundles.bundle_of(full), is_chosen=True)


def _bundle(names: dict[str, str]) -> str:
    """Raises ApiError: 404, 412."""
    namespace = make_namespace(names["tenant"], names["namespace"])
    return f"{namespace}/{form_decode(names['bundle'])}"


async def _holder(service: BrokerService, bundle: str, *, is_chosen: bool) -> Peer | None:
    namespace = bundle.rpartition("/")[0]
    if not await service.resources.namespace_exists(namespace):
        return None
    if bundle not in (await service.bundles.bundles(namespace)).names:
        return None  # made-up ranges are not to be owned
    return await whom_to_ask(service, bundle, is_chosen=is_chosen)


async def _named_broker(service: BrokerService, broker: str) -> Peer | None:
    if broker == service.broker_id:
        return None
    found = await service.cluster_members.find(broker)
    if found is None:
        raise ApiError(404, f"Broker id '{broker}' not found in available brokers.")
    return Peer.of(found)
