"""Clear backlogs and unsubscribe over a whole namespace, or one of its bundles."""

from __future__ import annotations

import logging
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Path, Response

from magnetar.broker.cluster.broker_client import BrokerCall, BrokerRefusedError, topic_path
from magnetar.broker.errors import BrokerError, SubscriptionNotFoundError, TopicNotFoundError
from magnetar.broker.http.dependencies import Authoritative, Namespace, Service, SubscriptionName
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.responses import no_content
from magnetar.broker.http.routing.scatter_gather import ScatterGather, Spread
from magnetar.broker.http.topics.namespace_topics import topics_everywhere
from magnetar.broker.http.topics.topic_access import each, loaded, require_bundle, require_namespace
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.service.broker_service import BrokerService
from magnetar.broker.subscription import subscription_admin as subscription_admin
from magnetar.broker.subscription.persistent_subscription import PersistentSubscription

router = APIRouter(prefix="/admin/v2/namespaces/{tenant}/{namespace}", tags=["namespaces"])

logger = logging.getLogger(__name__)

_REPLICATOR_PREFIX = "pulsar.repl"
_NOT_FOUND = 404
_NAMESPACE: dict[int | str, dict[str, Any]] = {404: {"description": "No such namespace"}}
_BUNDLE: dict[int | str, dict[str, Any]] = {
    **_NAMESPACE,
    412: {"description": "No such bundle, or consumers are connected"},
}
_Bundle = Annotated[str, Path(description="Hash range", examples=["0x00000000_0x40000000"])]


async def _topics(
    service: BrokerService, spread: ScatterGather, namespace: str, bundle: str | None
) -> list[TopicName]:
    """The topics, persistent ones loaded or not, users' and the broker's own.

    Raises:
        ApiError: 404 no such namespace, 412 no such bundle.
    """
    await require_namespace(service, namespace, "Namespace not found")
    if bundle is None:
        return [
            TopicName.parse(name)
            for name in await topics_everywhere(service, spread, namespace, "all")
        ]
    await require_bundle(service, namespace, bundle)
    bundle_of = (await service.bundles.bundles(namespace)).bundle_of
    names = await service.list_topics(namespace, "all")
    return [TopicName.parse(name) for name in names if bundle_of(name).endswith("/" + bundle)]


async def _clear(
    service: BrokerService,
    spread: ScatterGather,
    namespace: str,
    bundle: str | None,
    subscription: str | None,
) -> None:
    """Every subscription of that name, or simply every one, is set to its topic's end."""
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
    found = list(topic.subscriptions.values())
    if subscription is not None:
        one = topic.subscriptions.get(subscription)
        found = [] if one is None else [one]
    for one in found:
        if isinstance(one, PersistentSubscription):
            await subscription_admin.clear_backlog(one)


async def _unsubscribe(
    service: BrokerService,
    spread: ScatterGather,
    namespace: str,
    bundle: str | None,
    subscription: str,
) -> None:
    """Delete the subscription wherever it is; refused as a whole while it has consumers."""
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
        found = await spread.on_owner(name, here, call)
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
        topic = await service.get_topic(name, create=False)
        await topic.delete_subscription(subscription)

    tail = "/subscription/" + quote(quote(subscription, safe=""), safe="")
    try:
        await spread.on_owner(name, here, BrokerCall("DELETE", topic_path(name, tail)))
    except (SubscriptionNotFoundError, TopicNotFoundError):
        pass  # somebody was faster
    except BrokerRefusedError as error:
        if error.http_status != _NOT_FOUND:
            raise


@router.post(
    "/clearBacklog",
    status_code=204,
    summary="Acknowledge every backlog of the namespace",
    responses=_NAMESPACE,
)
async def clear_namespace(
    service: Service, namespace: Namespace, spread: Spread, authoritative: Authoritative = None
) -> Response:
    await _clear(service, spread, namespace, None, None)
    return no_content()


@router.post(
    "/clearBacklog/{subscription}",
    status_code=204,
    summary="Acknowledge the backlogs of one subscription name in the namespace",
    responses=_NAMESPACE,
)
async def clear_namespace_subscription(
    service: Service,
    namespace: Namespace,
    subscription: SubscriptionName,
    spread: Spread,
    authoritative: Authoritative = None,
) -> Response:
    await _clear(service, spread, namespace, None, subscription)
    return no_content()


@router.post(
    "/unsubscribe/{subscription}",
    status_code=204,
    summary="Delete a subscription from every topic of the namespace",
    responses=_BUNDLE,
)
async def unsubscribe_namespace(
    service: Service,
    namespace: Namespace,
    subscription: SubscriptionName,
    spread: Spread,
    authoritative: Authoritative = None,
) -> Response:
    await _unsubscribe(service, spread, namespace, None, subscription)
    return no_content()


@router.post(
    "/{bundle}/clearBacklog",
    status_code=204,
    summary="Acknowledge every backlog of a bundle",
    responses=_BUNDLE,
)
async def clear_bundle(
    service: Service,
    namespace: Namespace,
    bundle: _Bundle,
    spread: Spread,
    authoritative: Authoritative = None,
) -> Response:
    await _clear(service, spread, namespace, bundle, None)
    return no_content()


@router.post(
    "/{bundle}/clearBacklog/{subscription}",
    status_code=204,
    summary="Acknowledge the backlogs of one subscription name in a bundle",
    responses=_BUNDLE,
)
async def clear_bundle_subscription(
    service: Service,
    namespace: Namespace,
    bundle: _Bundle,
    subscription: SubscriptionName,
    spread: Spread,
    authoritative: Authoritative = None,
) -> Response:
    await _clear(service, spread, namespace, bundle, subscription)
    return no_content()


@router.post(
    "/{bundle}/unsubscribe/{subscription}",
    status_code=204,
    summary="Delete a subscription from every topic of a bundle",
    responses=_BUNDLE,
)
async def unsubscribe_bundle(
    service: Service,
    namespace: Namespace,
    bundle: _Bundle,
    subscription: SubscriptionName,
    spread: Spread,
    authoritative: Authoritative = None,
) -> Response:
    await _unsubscribe(service, spread, namespace, bundle, subscription)
    return no_content()
