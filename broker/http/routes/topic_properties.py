"""Properties of a topic: of its log, or of a partitioned topic's record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response

from magnetar.broker.http.dependencies import Authoritative, Service, Topic, json_body
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.responses import JsonResponse, no_content
from magnetar.broker.http.topics.topic_access import (
    NOT_FOUND,
    PROPERTIES_DOC,
    TOPIC,
    check_properties,
    loaded,
    not_found,
    require_persistent_name,
)
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.service.broker_service import BrokerService
from magnetar.broker.topic.persistent_topic import PersistentTopic

router = APIRouter(tags=["topics"])

_RESPONSES: dict[int | str, dict[str, Any]] = {
    **NOT_FOUND,
    406: {"description": "Not a persistent topic"},
}
_Properties = dict[str, str]


async def _topic(service: BrokerService, name: TopicName) -> PersistentTopic:
    try:
        found = await loaded(service, name)
    except ApiError as error:
        raise not_found(name) from error
    assert isinstance(found, PersistentTopic)
    return found


async def _change(
    service: BrokerService, name: TopicName, change: Callable[[_Properties], _Properties]
) -> None:
    """Apply a pure change, perhaps more than once, to what is stored."""

    def checked(before: _Properties) -> _Properties:
        return check_properties(change(before))

    if await service.partitions(name) is None:
        await (await _topic(service, name)).update_properties(checked)
        return
    await service.resources.update_partitioned(
        name, lambda record: {**record, "properties": checked(record.get("properties") or {})}
    )


@router.get(
    TOPIC + "/properties",
    summary="Properties of a topic",
    responses={
        200: {"content": {"application/json": {"example": {"team": "billing"}}}},
        **_RESPONSES,
    },
)
async def get_properties(
    service: Service, topic: Topic, authoritative: Authoritative = None
) -> Response:
    require_persistent_name(topic)
    record = await service.resources.partitioned(topic)
    if record is not None:
        return JsonResponse(record.get("properties") or {})
    return JsonResponse((await _topic(service, topic)).properties)


@router.put(
    TOPIC + "/properties",
    status_code=204,
    summary="Add or replace properties; the others stay",
    openapi_extra=PROPERTIES_DOC,
    responses={**_RESPONSES, 412: {"description": "Too large, or a reserved name"}},
)
async def put_properties(
    service: Service,
    topic: Topic,
    body: Annotated[_Properties | None, Depends(json_body(_Properties))],
    authoritative: Authoritative = None,
) -> Response:
    require_persistent_name(topic)
    added = check_properties(body)
    await _change(service, topic, lambda before: {**before, **added})
    return no_content()


@router.delete(
    TOPIC + "/properties",
    status_code=204,
    summary="Remove one property; one that isn't there is fine",
    responses=_RESPONSES,
)
async def remove_property(
    service: Service,
    topic: Topic,
    key: Annotated[str, Query(description="Name of the property")],
    authoritative: Authoritative = None,
) -> Response:
    require_persistent_name(topic)
    await _change(
        service,
        topic,
        lambda before: {name: value for name, value in before.items() if name != key},
    )
    return no_content()
