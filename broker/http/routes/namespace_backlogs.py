"""Clear backlogs and unsubscribe over a whole namespace, or one of its bundles."""

import logging
from typing import Annotated
from urllib.parse import quote

from starlette.requests import Request

from magnetar.broker.cluster.broker_client import BrokerCall, BrokerRefusedError, topic_path
from magnetar.broker.errors import BrokerError, SubscriptionNotFoundError, TopicNotFoundError
from magnetar.broker.http.dependencies import Namespace, Service, SubscriptionName, form_decode
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.parameters import Depends
from magnetar.broker.http.routing.route import Access, Routes, RoutingMode
from magnetar.broker.http.routing.scatter_gather import ScatterGather, Spread, each
from magnetar.broker.http.topics.namespace_topics import topics_everywhere
from magnetar.broker.http.topics.topic_access import loaded, require_bundle, require_namespace
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.service.broker_service import BrokerService
from magnetar.broker.subscription import subscription_admin as subscription_admin
from magnetar.broker.subscription.persistent_subscription import PersistentSubscription
from magnetar.broker.topic.topic import RESERVED_SUBSCRIPTIONS
from magnetar.metadata.loop_turns import in_turns

routes = Routes(
    "/admin/v2/namespaces/{tenant}/{namespace}",
    tag="namespaces",
    access=Access.CONSUME_403,
    mode=RoutingMode.SCATTER,
    statuses={404: "No such namespace", 412: "No such bundle, or consumers are connected"},
    authoritative=True,
)

logger = logging.getLogger(__name__)

_REPLICATOR_PREFIX = "pulsar.repl"
_NOT_FOUND = 404


async def _named_bundle(request: Request) -> str | None:
    return request.path_params.get("bundle")


async def _named_subscription(request: Request) -> str | None:
    name = request.path_params.get("subscription")
    return None if name is None else form_decode(name)


Bundle = Annotated[str | None, Depends(_named_bundle)]
AnySubscription = Annotated[str | None, Depends(_named_subscription)]


async def _topics(
    service: BrokerService, spread: ScatterGather, namespace: str, bundle: str | None
) -> list[TopicName]:
    """The topics, persistent ones loaded or not, users' and the broker's own.

    Raises:
        ApiError: 404 no such namespace, 412 no such bundle.
    """
    await require_namespace(service, namespace, "Namespace not found")
    if bundle is None:
        everywhere = await topics_everywhere(service, spread, namespace, "all")
        return [TopicName.parse(name) async for name in in_turns(everywhere)]
    await require_bundle(service, namespace, bundle)
    bundle_of = (await service.bundles.bundles(namespace)).bundle_of
    return [
        TopicName.parse(name)
        async for name in in_turns(await service.directory.names(namespace, "all"))
        if bundle_of(name).endswith("/" + bundle)
    ]


async def clear(
    service: Service,
    spread: Spread,
    namespace: Namespace,
    bundle: Bundle,
    subscription: AnySubscription,
) -> None:
    names = await _topics(service, spread, namespace, bundle)
    if bundle is not None:
        await each(names, lambda name: _clear_topic(service, name, subscription))
        return
    bundle_of = (await service.bundles.bundles(namespace)).bundle_of
    by_range: dict[str, list[TopicName]] = {}
    for name in names:
        by_range.setdefault(bundle_of(str(name)).rpartition("/")[2], []).append(name)

    async def here(found: str) -> None:
        await each(by_range[found], lambda name: _clear_topic(service, name, subscription))

    of_one = "" if subscription is None else "/" + quote(subscription, safe="")
    answers = await spread.bundles(
        namespace,
        by_range,
        here,
        method="POST",
        tail=f"/clearBacklog{of_one}",
        topic_in=lambda found: by_range[found][0],
    )
    answers.check()


async def _clear_topic(service: BrokerService, name: TopicName, subscription: str | None) -> None:
    try:
        topic = await loaded(service, name)
    except ApiError:
        return  # deleted meanwhile
    for one in list(topic.subscriptions.values()):
        if subscription is None and one.name in RESERVED_SUBSCRIPTIONS:
            continue  # the broker's own
        if subscription in (None, one.name) and isinstance(one, PersistentSubscription):
            await subscription_admin.clear_backlog(one)


async def unsubscribe(
    service: Service,
    spread: Spread,
    namespace: Namespace,
    bundle: Bundle,
    subscription: SubscriptionName,
) -> None:
    if subscription.startswith(_REPLICATOR_PREFIX):
        raise ApiError(412, "Cannot unsubscribe a replication cursor")
    names = await _topics(service, spread, namespace, bundle)
    users = await each(names, lambda name: _consumers(service, spread, name, subscription))
    if any(users):
        raise ApiError(412, "Subscription has active connected consumers")
    having = [name for name, count in zip(names, users, strict=True) if count is not None]

    async def delete(name: TopicName) -> BrokerError | None:
        try:
            await _delete(service, spread, name, subscription)
        except BrokerError as error:  # the others are to be deleted all the same
            logger.warning("%s: unsubscribing %s: %s", name, subscription, error)
            return error
        return None

    for error in await each(having, delete):
        if error is not None:
            raise error


async def _consumers(
    service: BrokerService, spread: ScatterGather, name: TopicName, subscription: str
) -> int | None:
    """How many the subscription has on a topic; None: it isn't there."""

    async def here() -> int | None:
        try:
            topic = await loaded(service, name)
        except ApiError:
            return None
        one = topic.subscriptions.get(subscription)
        return None if one is None else len(one.consumers)

    call = BrokerCall("GET", topic_path(name, "/stats"), "excludePublishers=true")
    try:
        found = await spread.on_owner(name, here, lambda: call)
    except BrokerRefusedError as error:
        if error.http_status == _NOT_FOUND:
            return None
        raise
    if isinstance(found, dict):  # TopicStats of another broker
        found = found["subscriptions"].get(subscription)
        return None if found is None else len(found["consumers"])
    return found


async def _delete(
    service: BrokerService, spread: ScatterGather, name: TopicName, subscription: str
) -> None:
    async def here() -> None:
        topic = await service.loader.load(name, create=False)
        await topic.delete_subscription(subscription)

    tail = "/subscription/" + quote(quote(subscription, safe=""), safe="")
    try:
        await spread.on_owner(name, here, lambda: BrokerCall("DELETE", topic_path(name, tail)))
    except (SubscriptionNotFoundError, TopicNotFoundError):
        pass  # another request was faster
    except BrokerRefusedError as error:
        if error.http_status != _NOT_FOUND:
            raise


# Of a namespace first: "clearBacklog" is no bundle.
for _of, _path, _mode, _what in (
    ("namespace", "", RoutingMode.SCATTER, "the namespace"),
    ("bundle", "/{bundle}", RoutingMode.ACQUIRE, "a bundle"),
):
    routes.declare(
        "POST",
        _path + "/clearBacklog",
        clear,
        f"Acknowledge every backlog of {_what}",
        access=Access.CONSUME_ALL_403,
        mode=_mode,
        name=f"clear_{_of}",
    )
    routes.declare(
        "POST",
        _path + "/clearBacklog/{subscription}",
        clear,
        f"Acknowledge the backlogs of one subscription name in {_what}",
        mode=_mode,
        name=f"clear_{_of}_subscription",
    )
    routes.declare(
        "POST",
        _path + "/unsubscribe/{subscription}",
        unsubscribe,
        f"Delete a subscription from every topic of {_what}",
        mode=_mode,
        name=f"unsubscribe_{_of}",
    )
