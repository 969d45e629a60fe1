"""What topics and subscriptions know of transactions."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from magnetar.broker.errors import ServiceNotReadyError
from magnetar.broker.http.dependencies import Flag, Service, SubscriptionName, Topic, flag
from magnetar.broker.http.parameters import Query
from magnetar.broker.http.responses import JsonResponse
from magnetar.broker.http.routing.route import Access, Routes, RoutingMode
from magnetar.broker.http.streamed_answers import in_pieces
from magnetar.broker.http.topics.topic_access import NOT_FOUND
from magnetar.broker.http.topics.topic_internals import log_stats
from magnetar.broker.http.topics.transaction_parts import (
    ROOT,
    Coordinators,
    in_buffer_stats,
    in_pending_acks_stats,
    log_fields,
    subscription_of,
    topic_of,
)
from magnetar.broker.subscription.persistent_subscription import PersistentSubscription
from magnetar.broker.subscription.transactional_acks import TransactionalAcks
from magnetar.broker.transaction.transaction_id import TransactionId
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.position import Position, format_position

routes = Routes(
    ROOT,
    tag="transactions",
    access=Access.LOOKUP_401,
    mode=RoutingMode.TOPIC,
    statuses={**NOT_FOUND, 503: "Transactions are off"},
)

_OF_TOPIC = "/{tenant}/{namespace}/{topic}"
_OF_SUBSCRIPTION = _OF_TOPIC + "/{subscription}"
_OF_TRANSACTION = "/{mostSigBits}/{leastSigBits}"
_LOG: dict[str, Any] = {
    "managedLedgerName": "public/default/persistent/orders",
    "managedLedgerInternalStats": {"numberOfEntries": 5, "lastConfirmedEntry": "12:4"},
}
_LowWaterMarks = Annotated[
    str | None, Flag(False, "Also up to which transaction of each coordinator all have ended")
]
_Metadata = Annotated[str | None, Flag(False, "Also each ledger's own metadata")]


@routes.get(
    "/transactionBufferStats" + _OF_TOPIC,
    example={
        "state": "Ready",
        "maxReadPosition": "12:4",
        "lastSnapshotTimestamps": 1700000000000,
        "ongoingTxnSize": 1,
        "recoverStartTime": 1700000000000,
        "recoverEndTime": 1700000000004,
        "totalAbortedTransactions": 0,
        "snapshotType": "Single",
    },
)
async def buffer_stats(
    service: Service,
    _: Coordinators,
    topic: Topic,
    lowWaterMarks: _LowWaterMarks = None,
    segmentStats: Annotated[str | None, Flag(False, "Ignored: there are no segments")] = None,
) -> Response:
    """Up to where a topic is delivered, and which transactions it has."""
    found = await topic_of(service, topic)
    transactions = found.transactions
    if transactions is None:
        answer: dict[str, Any] = {
            "state": "NoSnapshot",
            "maxReadPosition": format_position(found.ledger.last_confirmed),
            "lastSnapshotTimestamps": 0,
            "ongoingTxnSize": 0,
            "recoverStartTime": 0,
            "recoverEndTime": 0,
            "totalAbortedTransactions": 0,
        }
        finished: dict[int, int] = {}
    else:
        buffer = transactions.buffer
        start_ms, end_ms = transactions.recovered_ms
        answer = {
            "state": "Initializing" if transactions.is_starting else "Ready",
            "maxReadPosition": format_position(buffer.readable),
            "lastSnapshotTimestamps": transactions.snapshot_ms,
            "ongoingTxnSize": len(buffer.open),
            "recoverStartTime": start_ms,
            "recoverEndTime": end_ms,
            "totalAbortedTransactions": buffer.aborted_total,
        }
        finished = buffer.finished
    if flag(lowWaterMarks):
        answer["lowWaterMarks"] = _by_coordinator(finished)
    return JsonResponse({**answer, "snapshotType": "Single"})


def _by_coordinator(sequences: dict[int, int]) -> dict[str, int]:
    return {str(number): sequence for number, sequence in sequences.items()}


@routes.get(
    "/transactionBufferInternalStats" + _OF_TOPIC,
    example={"snapshotType": "Single", "singleSnapshotSystemTopicInternalStats": _LOG},
)
async def buffer_internal_stats(
    request: Request, service: Service, _: Coordinators, topic: Topic, metadata: _Metadata = None
) -> Response:
    """Ledgers of the log that has the snapshots: the topic's own."""
    log = (await topic_of(service, topic)).ledger
    return await in_pieces(request, _snapshot_log(log, metadata=flag(metadata)))


async def _snapshot_log(log: ManagedLedger, *, metadata: bool) -> AsyncIterator[bytes]:
    name = orjson.dumps(log.name)
    yield b'{"snapshotType":"Single","singleSnapshotSystemTopicInternalStats":'
    yield b'{"managedLedgerName":%b,"managedLedgerInternalStats":' % name
    async for piece in log_stats(log, metadata=metadata):
        yield piece
    yield b"}}"


@routes.get(
    "/transactionInBufferStats" + _OF_TOPIC + _OF_TRANSACTION,
    example={"startPosition": "12:0", "aborted": False},
)
async def transaction_in_buffer_stats(
    service: Service, _: Coordinators, topic: Topic, mostSigBits: int, leastSigBits: int
) -> Response:
    """Where a transaction begins in a topic; whether its messages are left out."""
    name = TransactionId(mostSigBits, leastSigBits)
    return JsonResponse(await in_buffer_stats(service, topic, name))


@routes.get(
    "/pendingAckStats" + _OF_SUBSCRIPTION,
    example={
        "state": "Ready",
        "ongoingTxnSize": 1,
        "recoverStartTime": 1700000000000,
        "recoverEndTime": 1700000000004,
    },
)
async def pending_ack_stats(
    service: Service,
    _: Coordinators,
    topic: Topic,
    subscription: SubscriptionName,
    lowWaterMarks: _LowWaterMarks = None,
) -> Response:
    """Transactions that have acknowledged messages of a subscription."""
    found = (await subscription_of(service, topic, subscription)).transactions
    start_ms, end_ms = (0, 0) if found is None else found.log.replayed_ms
    answer: dict[str, Any] = {
        "state": _log_state(found),
        "ongoingTxnSize": 0 if found is None else len(found.log.core.transactions),
        "recoverStartTime": start_ms,
        "recoverEndTime": end_ms,
    }
    if flag(lowWaterMarks):
        known = {} if found is None else found.log.core.low_watermarks
        answer["lowWaterMarks"] = _by_coordinator(known)
    return JsonResponse(answer)


def _log_state(acks: TransactionalAcks | None) -> str:
    if acks is None or acks.log.is_unused:
        return "None"
    return "Ready" if acks.log.is_open else "Initializing"


@routes.get(
    "/pendingAckInternalStats" + _OF_SUBSCRIPTION,
    example={"pendingAckLogStats": _LOG},
    statuses={503: "Transactions are off, or none has acknowledged anything yet"},
)
async def pending_ack_internal_stats(
    service: Service,
    _: Coordinators,
    topic: Topic,
    subscription: SubscriptionName,
    metadata: _Metadata = None,
) -> Response:
    """Ledgers of the log of acknowledgements in transactions."""
    found = (await subscription_of(service, topic, subscription)).transactions
    if found is None or (log := found.log.ledger) is None:
        raise ServiceNotReadyError("Pending ack have not init success!")
    stats = await log_fields(log, metadata=flag(metadata))
    return JsonResponse({"pendingAckLogStats": stats})


@routes.get(
    "/transactionInPendingAckStats" + _OF_SUBSCRIPTION + _OF_TRANSACTION,
    example={"cumulativeAckPosition": "12:4"},
)
async def transaction_in_pending_ack_stats(
    service: Service,
    _: Coordinators,
    topic: Topic,
    subscription: SubscriptionName,
    mostSigBits: int,
    leastSigBits: int,
) -> Response:
    """Up to where a transaction has acknowledged cumulatively."""
    name = TransactionId(mostSigBits, leastSigBits)
    return JsonResponse(await in_pending_acks_stats(service, topic, subscription, name))


@routes.get(
    "/positionStatsInPendingAck" + _OF_SUBSCRIPTION + "/{ledgerId}/{entryId}",
    example={"state": "PendingAck"},
)
async def position_stats(
    service: Service,
    _: Coordinators,
    topic: Topic,
    subscription: SubscriptionName,
    ledgerId: int,
    entryId: int,
    batchIndex: Annotated[int | None, Query(description="Of one message of a batch", ge=0)] = None,
) -> Response:
    """Whether a message is acknowledged in a transaction that hasn't ended.

    `PendingAck`: it is. `MarkDelete`: it is acknowledged, as all in front of it. `NotInPendingAck`:
    neither. `PendingAckNotReady`: no transaction has acknowledged anything yet. `InvalidPosition`:
    its batch has fewer messages, or it isn't known as one.
    """
    found = await subscription_of(service, topic, subscription)
    return JsonResponse({"state": _state(found, (ledgerId, entryId), batchIndex)})


def _state(
    subscription: PersistentSubscription, position: Position, batch_index: int | None
) -> str:
    if subscription.transactions is None or not subscription.transactions.log.is_open:
        return "PendingAckNotReady"
    if position < subscription.cursor.state.first_unacked():
        return "MarkDelete"
    core = subscription.transactions.log.core
    if not core.is_pending(position):
        return "NotInPendingAck"
    if batch_index is None:
        return "PendingAck"
    if batch_index >= core.batch_size(position):
        return "InvalidPosition"
    return "PendingAck" if core.is_pending(position, batch_index) else "NotInPendingAck"
