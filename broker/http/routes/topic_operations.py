"""Terminate, truncate, trim, offload; and what this broker doesn't have."""

from __future__ import annotations

from typing import Annotated, Any, NoReturn

from fastapi import APIRouter, Depends, Response

from magnetar.broker.cluster.broker_client import BrokerCall, topic_path
from magnetar.broker.http.dependencies import Authoritative, Service, Topic, body_doc, json_body
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.responses import JsonResponse, no_content
from magnetar.broker.http.routing.scatter_gather import Spread
from magnetar.broker.http.topics.topic_access import (
    ID_DOC,
    NOT_FOUND,
    OF_PARTITIONED,
    TOPIC,
    MessageIdBody,
    loaded,
    message_id,
    persistent,
    require_existing,
    require_namespace,
    require_persistent_name,
)
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.service.broker_service import BrokerService
from magnetar.broker.topic.persistent_topic import PersistentTopic
from magnetar.managed_ledger.offload.errors import OffloadBusyError, OffloadError

router = APIRouter(tags=["topics"])

_ABSENT: dict[int | str, dict[str, Any]] = {501: {"description": "This broker can't do it"}}
_LAST_ID: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {
            "application/json": {"example": {"ledgerId": 12, "entryId": 4, "partitionIndex": -1}}
        }
    },
    **OF_PARTITIONED,
    406: {"description": "Not a persistent topic"},
}


async def _stored_topic(service: BrokerService, name: TopicName) -> PersistentTopic:
    """The loaded topic. REQUIRES: a persistent name. Raises ApiError 404."""
    topic = await loaded(service, name)
    assert isinstance(topic, PersistentTopic)
    return topic


@router.post(TOPIC + "/terminate", summary="Take no more messages, for good", responses=_LAST_ID)
async def terminate(
    service: Service, topic: Topic, authoritative: Authoritative = None
) -> Response:
    require_persistent_name(topic)
    found = await persistent(
        service, topic, "Termination", "Termination of a partitioned topic is not allowed"
    )
    return JsonResponse(message_id(await found.terminate(), topic))


@router.post(
    TOPIC + "/terminate/partitions",
    summary="Terminate every partition",
    responses={
        200: {
            "content": {
                "application/json": {
                    "example": {"0": {"ledgerId": 12, "entryId": 4, "partitionIndex": 0}}
                }
            }
        },
        404: {"description": "No such namespace"},
        405: {"description": "Not a partitioned topic"},
        406: {"description": "Not a persistent topic"},
    },
)
async def terminate_partitions(
    service: Service, topic: Topic, spread: Spread, authoritative: Authoritative = None
) -> Response:
    await require_namespace(service, topic.namespace, "Namespace not found")
    count = await service.partitions(topic)
    if count is None:
        raise ApiError(
            405,
            "Termination of a non-partitioned topic is not allowed using partitioned-terminate, "
            "please use terminate commands",
        )
    require_persistent_name(topic)

    async def one(name: TopicName) -> dict[str, int]:
        return message_id(await (await _stored_topic(service, name)).terminate(), name)

    answers = await spread.parts(
        topic,
        one,
        count=count,
        call=lambda part: BrokerCall("POST", topic_path(part, "/terminate")),
    )
    ids = answers.check().values
    return JsonResponse({str(index): answer for index, answer in enumerate(ids)})


@router.delete(
    TOPIC + "/truncate",
    status_code=204,
    summary="Acknowledge everything for every subscription and delete what is stored",
    responses={**NOT_FOUND, 412: {"description": "A non-persistent topic"}},
)
async def truncate(
    service: Service, topic: Topic, spread: Spread, authoritative: Authoritative = None
) -> Response:
    if not topic.is_persistent:
        raise ApiError(412, "unsupport truncate")

    async def one(name: TopicName) -> None:
        await (await _stored_topic(service, name)).truncate()

    (await spread.parts(topic, one)).without(404).check()
    return no_content()


@router.post(
    TOPIC + "/trim",
    status_code=204,
    summary="Delete now what no subscription and no retention needs",
    responses=OF_PARTITIONED,
)
async def trim(
    service: Service, topic: Topic, spread: Spread, authoritative: Authoritative = None
) -> Response:
    if not topic.is_persistent:
        raise ApiError(405, "Trim on a non-persistent topic is not allowed")

    async def one(name: TopicName) -> None:
        await (await _stored_topic(service, name)).trim()

    (await spread.parts(topic, one)).without(404).check()
    return no_content()


_FIRST_KEPT: dict[str, Any] = {
    "ledgerId": 12,
    "entryId": 0,
    "partitionIndex": -1,
    "batchSize": 0,
    "batchIndex": -1,
}


# --- processes that this broker doesn't have: asked for, they are refused; nothing ever ran


def _refuse(what: str) -> NoReturn:
    raise ApiError(501, f"{what} is not supported by this broker")


@router.put(
    TOPIC + "/compaction",
    summary="Refused: topics aren't compacted yet",
    responses={**OF_PARTITIONED, **_ABSENT},
)
async def compact(service: Service, topic: Topic, authoritative: Authoritative = None) -> Response:
    if not topic.is_persistent:
        raise ApiError(405, "Compaction on a non-persistent topic is not allowed")
    await require_existing(service, topic)
    _refuse("Topic compaction")


@router.get(
    TOPIC + "/compaction",
    summary="State of the last compaction: it never ran",
    responses={
        200: {"content": {"application/json": {"example": {"status": "NOT_RUN", "lastError": ""}}}},
        **OF_PARTITIONED,
    },
)
async def compaction_status(
    service: Service, topic: Topic, authoritative: Authoritative = None
) -> Response:
    await _require_one(service, topic, "Compaction status")
    return JsonResponse({"status": "NOT_RUN", "lastError": ""})


async def _require_one(service: BrokerService, topic: TopicName, what: str) -> None:
    """Raises ApiError: 405 non-persistent, 404 missing or partitioned, as Pulsar answers."""
    if not topic.is_persistent:
        raise ApiError(405, f"{what} of a non-persistent topic is not available")
    await loaded(service, topic)


@router.put(
    TOPIC + "/offload",
    status_code=204,
    summary="Begin to copy all ledgers before a message's elsewhere",
    openapi_extra=ID_DOC,
    responses={
        400: {"description": "No message id in the body"},
        **OF_PARTITIONED,
        409: {"description": "It is being done already"},
        503: {"description": "The topic is being unloaded"},
    },
)
async def offload(
    service: Service,
    topic: Topic,
    body: Annotated[MessageIdBody | None, Depends(json_body(MessageIdBody))],
    authoritative: Authoritative = None,
) -> Response:
    if body is None:
        raise ApiError(400, "messageId is null")
    await _require_one(service, topic, "Offload")
    found = await loaded(service, topic)
    assert isinstance(found, PersistentTopic)
    try:
        found.ledger.offloads.offload_before(body.position)
    except OffloadBusyError as error:
        raise ApiError(409, "Offload already in progress") from error
    except OffloadError as error:
        raise ApiError(503, str(error)) from error
    return no_content()


@router.get(
    TOPIC + "/offload",
    summary="State of the offload that was asked for last",
    responses={
        200: {
            "content": {
                "application/json": {
                    "example": {
                        "status": "SUCCESS",
                        "lastError": "",
                        "firstUnoffloadedMessage": _FIRST_KEPT,
                    }
                }
            }
        },
        **OF_PARTITIONED,
    },
)
async def offload_status(
    service: Service, topic: Topic, authoritative: Authoritative = None
) -> Response:
    await _require_one(service, topic, "Offload status")
    found = await loaded(service, topic)
    assert isinstance(found, PersistentTopic)
    status = found.ledger.offloads.status
    first_kept = {**message_id(status.first_kept, topic), "partitionIndex": -1}
    return JsonResponse(
        {
            "status": status.state,
            "lastError": status.error,
            "firstUnoffloadedMessage": first_kept,
        }
    )


_SHADOWS: dict[int | str, dict[str, Any]] = {
    **NOT_FOUND,
    412: {"description": "A partition, or not a persistent topic"},
}


async def _require_shadow_source(service: BrokerService, topic: TopicName) -> None:
    if topic.is_partition:
        raise ApiError(412, "Not allowed to set/get topic policy for a partition")
    await require_existing(service, topic)


@router.get(
    TOPIC + "/shadowTopics", status_code=204, summary="None: there are none", responses=_SHADOWS
)
async def shadow_topics(service: Service, topic: Topic) -> Response:
    await _require_shadow_source(service, topic)
    return no_content()


@router.put(
    TOPIC + "/shadowTopics",
    summary="Refused: there are no shadow topics yet",
    openapi_extra=body_doc(
        {"type": "array", "items": {"type": "string"}}, ["persistent://public/default/shadow"]
    ),
    responses={**_SHADOWS, **_ABSENT},
)
async def set_shadow_topics(
    service: Service,
    topic: Topic,
    body: Annotated[list[str] | None, Depends(json_body(list[str]))],
) -> Response:
    if not topic.is_persistent:
        raise ApiError(412, "Only persistent source topic is supported with shadow topics.")
    if not body:
        raise ApiError(412, "No shadow topics are given; DELETE removes them")
    await _require_shadow_source(service, topic)
    _refuse("Shadow topics")


@router.delete(
    TOPIC + "/shadowTopics",
    status_code=204,
    summary="Remove shadow topics: there are none",
    responses=_SHADOWS,
)
async def remove_shadow_topics(service: Service, topic: Topic) -> Response:
    await _require_shadow_source(service, topic)
    return no_content()
