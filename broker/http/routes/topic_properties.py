"""Properties of a topic: of its log, or of a partitioned topic's record."""

from collections.abc import Callable
from typing import Annotated

from starlette.responses import Response

from magnetar.broker.http.dependencies import Service, Topic
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.parameters import Query
from magnetar.broker.http.responses import JsonResponse
from magnetar.broker.http.routing.route import Access, Routes, RoutingMode, Statuses
from magnetar.broker.http.topics.topic_access import (
    NOT_FOUND,
    TOPIC,
    PropertiesBody,
    check_properties,
    not_found,
    require_persistent_name,
    stored_topic,
)
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.service.broker_service import BrokerService
from magnetar.broker.topic.persistent_topic import PersistentTopic

routes = Routes(
    TOPIC, tag="topics", access=Access.ADMIN_401, mode=RoutingMode.TOPIC, statuses=NOT_FOUND
)

_RESPONSES: Statuses = {406: "Not a persistent topic"}
_Properties = dict[str, str]


async def _topic(service: BrokerService, name: TopicName) -> PersistentTopic:
    try:
        return await stored_topic(service, name)
    except ApiError as error:
        raise not_found(name) from error


async def _change(
    service: BrokerService, name: TopicName, change: Callable[[_Properties], _Properties]
) -> None:
    """Apply a pure change, perhaps more than once, to what is stored."""

    def checked(before: _Properties) -> _Properties:
        return check_properties(change(before))

    if await service.directory.partitions(name) is None:
        await (await _topic(service, name)).update_properties(checked)
        return
    await service.resources.update_partitioned(
        name, lambda record: {**record, "properties": checked(record.get("properties") or {})}
    )


@routes.get(
    "/properties", access=Access.LOOKUP_401, example={"team": "billing"}, statuses=_RESPONSES
)
async def get_properties(service: Service, topic: Topic) -> Response:
    """Properties of a topic."""
    require_persistent_name(topic)
    record = await service.resources.partitioned(topic)
    if record is not None:
        return JsonResponse(record.get("properties") or {})
    return JsonResponse((await _topic(service, topic)).properties)


@routes.put("/properties", statuses={**_RESPONSES, 412: "Too large, or a reserved name"})
async def put_properties(service: Service, topic: Topic, body: PropertiesBody) -> None:
    """Add or replace properties; the others stay."""
    require_persistent_name(topic)
    added = check_properties(body)
    await _change(service, topic, lambda before: {**before, **added})


@routes.delete("/properties", statuses=_RESPONSES)
async def remove_property(
    service: Service, topic: Topic, key: Annotated[str, Query(description="Name of the property")]
) -> None:
    """Remove one property; one that isn't there is fine."""
    require_persistent_name(topic)
    await _change(
        service,
        topic,
        lambda before: {name: value for name, value in before.items() if name != key},
    )
