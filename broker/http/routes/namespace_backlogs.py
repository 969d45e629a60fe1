"""Clear backlogs and unsubscribe over a whole namespace, or one of its bundles (http-api 2.3)."""

from __future__ import annotations

import logging
from typing import Annotated, Any

from fastapi import APIRouter, Path, Response

from broker.errors import BrokerError, SubscriptionNotFoundError
from broker.http.dependencies import Authoritative, Namespace, Service, SubscriptionName
from broker.http.errors import ApiError
from broker.http.responses import no_content
from broker.http.topic_access import each, loaded, require_bundle, require_namespace
from broker.protocol.topic_name import TopicName
from broker.service import subscription_admin
from broker.service.broker_service import BrokerService
from broker.service.persistent_subscription import PersistentSubscription
from broker.service.topic import Topic as LoadedTopic

__all__ = ["router"]

router = APIRouter(prefix="/admin/v2/namespaces/{tenant}/{namespace}", tags=["namespaces"])

logger = logging.getLogger(__name__)

_REPLICATOR_PREFIX = "pulsar.repl"
_NAMESPACE: dict[int | str, dict[str, Any]] = {404: {"description": "No such namespace"}}
_BUNDLE: dict[int | str, dict[str, Any]] = {
    **_NAMESPACE,
    412: {"description": "No such bundle, or consumers are connected"},
}
_Bundle = Annotated[str, Path(description="Hash range", examples=["0x00000000_0x40000000"])]


async def _topics(service: BrokerService, namespace: str, bundle: str | None) -> list[TopicName]:
    """The topics, persistent ones loaded or not, users' and the broker's own.

    Raises:
        ApiError: 404 no such namespace, 412 no such bundle.
    """
    await require_namespace(service, namespace, "Namespace not found")
    names = await service.list_topics(namespace, "all")
    if bundle is not None:
        await require_bundle(service, namespace, bundle)
        bundle_of = (await service.bundles.bundles(namespace)).bundle_of
        names = [name for name in names if bundle_of(name).endswith("/" + bundle)]
    return [TopicName.parse(name) for name in names]


async def _clear(
    service: BrokerService, namespace: str, bundle: str | None, subscription: str | None
) -> None:
    """Every subscription of that name, or simply every one, is set to its topic's end."""

    async def clear(name: TopicName) -> None:
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

    await each(await _topics(service, namespace, bundle), clear)


async def _unsubscribe(
    service: BrokerService, namespace: str, bundle: str | None, subscription: str
) -> None:
    """Delete the subscription wherever it is; refused as a whole while it has consumers."""
    if subscription.startswith(_REPLICATOR_PREFIX):
        raise ApiError(412, "Cannot unsubscribe a replication cursor")

    async def load(name: TopicName) -> LoadedTopic | None:
        try:
            topic = await loaded(service, name)
        except ApiError:
            return None
        return topic if subscription in topic.subscriptions else None

    topics = [
        topic
        for topic in await each(await _topics(service, namespace, bundle), load)
        if topic is not None
    ]
    for topic in topics:
        one = topic.subscriptions.get(subscription)
        if one is not None and one.consumers:
            raise ApiError(412, "Subscription has active connected consumers")

    async def delete(topic: LoadedTopic) -> BrokerError | None:
        try:
            await topic.delete_subscription(subscription)
        except SubscriptionNotFoundError:
            return None  # somebody was faster
        except BrokerError as error:  # the others are to be deleted all the same
            logger.warning("%s: unsubscribing %s: %s", topic.name, subscription, error)
            return error
        return None

    for error in await each(topics, delete):
        if error is not None:
            raise error


@router.post(
    "/clearBacklog",
    status_code=204,
    summary="Acknowledge every backlog of the namespace",
    responses=_NAMESPACE,
)
async def clear_namespace(
    service: Service, namespace: Namespace, authoritative: Authoritative = None
) -> Response:
    await _clear(service, namespace, None, None)
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
    authoritative: Authoritative = None,
) -> Response:
    await _clear(service, namespace, None, subscription)
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
    authoritative: Authoritative = None,
) -> Response:
    await _unsubscribe(service, namespace, None, subscription)
    return no_content()


@router.post(
    "/{bundle}/clearBacklog",
    status_code=204,
    summary="Acknowledge every backlog of a bundle",
    responses=_BUNDLE,
)
async def clear_bundle(
    service: Service, namespace: Namespace, bundle: _Bundle, authoritative: Authoritative = None
) -> Response:
    await _clear(service, namespace, bundle, None)
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
    authoritative: Authoritative = None,
) -> Response:
    await _clear(service, namespace, bundle, subscription)
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
    authoritative: Authoritative = None,
) -> Response:
    await _unsubscribe(service, namespace, bundle, subscription)
    return no_content()
