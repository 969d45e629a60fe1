"""Coordinators of transactions, and the transactions that they have."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import quote

from starlette.responses import Response

from magnetar.broker.cluster.broker_client import BrokerCall
from magnetar.broker.errors import (
    BrokerError,
    NotAllowedError,
    ServiceNotReadyError,
    TransactionNotFoundError,
)
from magnetar.broker.http.dependencies import Body, Flag, Service, flag
from magnetar.broker.http.errors import ApiError, answer_for
from magnetar.broker.http.parameters import Query
from magnetar.broker.http.responses import JsonResponse
from magnetar.broker.http.routing.route import Access, Routes, RoutingMode
from magnetar.broker.http.routing.scatter_gather import ScatterGather, Spread, each
from magnetar.broker.http.topics.open_transactions import (
    ALWAYS_MS,
    open_page,
    open_row,
    places_of,
)
from magnetar.broker.http.topics.transaction_parts import (
    ROOT,
    Coordinators,
    in_buffer_stats,
    in_pending_acks_stats,
    log_fields,
    participant_path,
)
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.service.broker_service import BrokerService
from magnetar.broker.service.transaction_coordinators import TransactionCoordinators
from magnetar.broker.topic.topic_directory import partitions_max
from magnetar.broker.transaction.async_coordinator import AsyncCoordinator
from magnetar.broker.transaction.coordinator import TransactionDescription
from magnetar.broker.transaction.transaction_id import TransactionId

T = TypeVar("T")

_SLOW_MAX: Final = 1000
"""Transactions in one answer: the topics of each are asked."""
_ABORT_S: Final = 20
_NO_COORDINATOR = {404: "No such coordinator"}
_NOT_FOUND = {404: "No such coordinator or transaction"}
_STATS_EXAMPLE: dict[str, Any] = {
    "state": "Ready",
    "leastSigBits": 39,
    "lowWaterMark": 24,
    "ongoingTxnSize": 2,
    "recoverStartTime": 1700000000000,
    "recoverEndTime": 1700000000004,
    "stuckEnds": 0,
}
_METADATA_EXAMPLE: dict[str, Any] = {
    "txnId": "(0,39)",
    "status": "OPEN",
    "openTimestamp": 1700000000000,
    "timeoutAt": 60000,
    "producedPartitions": {
        "persistent://public/default/orders": {"startPosition": "12:0", "aborted": False}
    },
    "ackedPartitions": {"persistent://public/default/orders": {"billing": {}}},
}

routes = Routes(
    ROOT,
    tag="transactions",
    access=Access.SUPERUSER,
    mode=RoutingMode.LOCAL,
    statuses={503: "Transactions are off, or a broker doesn't answer"},
)

_Number = Annotated[int | None, Query(description="Of one coordinator; left out: all of them")]


async def _at_owner(
    coordinators: TransactionCoordinators,
    spread: ScatterGather,
    number: int,
    one: Callable[[AsyncCoordinator], Awaitable[T]],
    *,
    call: BrokerCall | None = None,
) -> T | Any:
    """Ask a coordinator where it is; it is opened there.

    Args:
        call: asks another broker for it; None: this request.
    Raises:
        ApiError: 404, there are fewer.
    """
    if not 0 <= number < await coordinators.count():
        raise ApiError(404, f"Transaction coordinator not found! coordinator id : {number}")

    async def here() -> T:
        await coordinators.connect(number)
        return await one(coordinators.get(number))

    name = coordinators.partition(number)
    return await spread.on_owner(name, here, lambda: call or spread.same_call())


async def _of_all(
    coordinators: TransactionCoordinators,
    spread: ScatterGather,
    path: str,
    one: Callable[[AsyncCoordinator], Awaitable[T]],
    query: str = "",
) -> dict[int, T]:
    """The same of all, in their order. Raises the first error.

    Args:
        query: of the call to another broker, beside the coordinator.
    """

    async def ask(number: int) -> T:
        call = BrokerCall("GET", ROOT + path, f"coordinatorId={number}{query}")
        found: T = await _at_owner(coordinators, spread, number, one, call=call)
        return found

    numbers = range(await coordinators.count())
    return dict(zip(numbers, await each(numbers, ask), strict=True))


@routes.get("/coordinators", example=[{"id": 0, "brokerServiceUrl": "pulsar://127.0.0.1:6650"}])
async def list_coordinators(service: Service, coordinators: Coordinators) -> Response:
    """Coordinators of transactions, and where each is."""

    async def row(number: int) -> dict[str, Any]:
        peer = await service.broker_client.serving(coordinators.partition(number))
        broker = service.bundles.broker if peer is None else peer
        return {"id": number, "brokerServiceUrl": broker.broker_url or broker.broker_url_tls}

    return JsonResponse(await each(range(await coordinators.count()), row))


@routes.get("/coordinatorStats", example={"0": _STATS_EXAMPLE}, statuses=_NO_COORDINATOR)
async def coordinator_stats(
    coordinators: Coordinators, spread: Spread, coordinatorId: _Number = None
) -> Response:
    """Figures of one coordinator, or of all by their numbers.

    `stuckEnds`, our own field, counts transactions whose end some topic or subscription refused or
    didn't answer; it is sent again.
    """
    if coordinatorId is not None:
        return JsonResponse(await _at_owner(coordinators, spread, coordinatorId, _stats))
    found = await _of_all(coordinators, spread, "/coordinatorStats", _stats)
    return JsonResponse({str(number): stats for number, stats in found.items()})


async def _stats(coordinator: AsyncCoordinator) -> dict[str, Any]:
    core = coordinator.core
    start_ms, end_ms = coordinator.replayed_ms
    return {
        "state": "Ready",
        "leastSigBits": core.last_sequence,
        "lowWaterMark": core.low_watermark(),
        "ongoingTxnSize": len(core),
        "recoverStartTime": start_ms,
        "recoverEndTime": end_ms,
        "stuckEnds": core.metrics.stuck,
    }


@routes.get(
    "/coordinatorInternalStats/{coordinatorId}",
    example={
        "transactionLogStats": {
            "managedLedgerName": "pulsar/system/persistent/__transaction_log_0",
            "managedLedgerInternalStats": {"numberOfEntries": 5, "lastConfirmedEntry": "12:4"},
        }
    },
    statuses=_NO_COORDINATOR,
)
async def coordinator_internal_stats(
    coordinators: Coordinators,
    spread: Spread,
    coordinatorId: int,
    metadata: Annotated[str | None, Flag(False, "Also each ledger's own metadata")] = None,
) -> Response:
    """Ledgers of a coordinator's log."""

    async def stats(coordinator: AsyncCoordinator) -> dict[str, Any]:
        assert coordinator.log is not None
        return {"transactionLogStats": await log_fields(coordinator.log, metadata=flag(metadata))}

    return JsonResponse(await _at_owner(coordinators, spread, coordinatorId, stats))


@routes.get(
    "/transactionMetadata/{mostSigBits}/{leastSigBits}",
    example=_METADATA_EXAMPLE,
    statuses=_NOT_FOUND,
)
async def transaction_metadata(
    service: Service,
    coordinators: Coordinators,
    spread: Spread,
    mostSigBits: int,
    leastSigBits: int,
) -> Response:
    """A transaction that hasn't ended.

    `timeoutAt` is how long it may be open. `error` in the place of what a topic or subscription
    knows says why that couldn't be asked. `end`, our own field, is there while an end is under way:
    since when, and why topics and subscriptions don't have it yet.
    """

    async def describe(coordinator: AsyncCoordinator) -> dict[str, Any]:
        found = coordinator.core.describe(leastSigBits)
        if found is None:
            name = TransactionId(mostSigBits, leastSigBits)
            raise TransactionNotFoundError(f"The transaction with this txdID `{name}`not found ")
        return await _Metadata(service, spread, coordinator).of(found)

    return JsonResponse(await _at_owner(coordinators, spread, mostSigBits, describe))


@routes.get(
    "/slowTransactions/{timeoutMs}",
    example={"(0,39)": _METADATA_EXAMPLE},
    statuses=_NO_COORDINATOR,
)
async def slow_transactions(
    service: Service,
    coordinators: Coordinators,
    spread: Spread,
    timeoutMs: int,
    coordinatorId: _Number = None,
) -> Response:
    """Transactions that began more than so many milliseconds ago and haven't ended.

    At most 1,000 of each coordinator, the oldest ones.
    """

    async def slow(coordinator: AsyncCoordinator) -> dict[str, Any]:
        some = await coordinator.begun_before(service.clock() - timeoutMs, _SLOW_MAX)
        answers = await each(some, _Metadata(service, spread, coordinator).of)
        return {answer["txnId"]: answer for answer in answers}

    if coordinatorId is not None:
        return JsonResponse(await _at_owner(coordinators, spread, coordinatorId, slow))
    found = await _of_all(coordinators, spread, f"/slowTransactions/{timeoutMs}", slow)
    return JsonResponse({name: x for some in found.values() for name, x in some.items()})


@routes.get(
    "/openTransactions",
    example={
        "transactions": [
            {
                "txnId": "(0,39)",
                "status": "OPEN",
                "openTimestamp": 1700000000000,
                "timeoutAt": 60000,
                "partitions": 1,
                "subscriptions": 0,
                "errors": 0,
            }
        ],
        "next": "0:39",
    },
    statuses={**_NO_COORDINATOR, 400: "No place in the list"},
)
async def open_transactions(
    service: Service,
    coordinators: Coordinators,
    spread: Spread,
    coordinatorId: _Number = None,
    after: Annotated[str, Query(description="`next` of the page before")] = "",
    limit: Annotated[int, Query(description="How many", ge=1, le=_SLOW_MAX)] = 50,
) -> Response:
    """Transactions that haven't ended, a page at a time, the oldest first. Our own.

    `errors` counts topics and subscriptions that couldn't take the end. `next` is `null` behind the
    last one.
    """
    places = places_of(after)

    async def one(coordinator: AsyncCoordinator) -> dict[str, Any]:
        number = coordinator.core.number
        some = await coordinator.begun_before(ALWAYS_MS, limit, places.get(number, -1))
        return open_page({number: [open_row(x, coordinator.ends) for x in some]}, places, limit)

    if coordinatorId is not None:
        return JsonResponse(await _at_owner(coordinators, spread, coordinatorId, one))
    query = f"&limit={limit}&after={quote(after)}"
    found = await _of_all(coordinators, spread, "/openTransactions", one, query)
    rows = {number: each["transactions"] for number, each in found.items()}
    return JsonResponse(open_page(rows, places, limit))


class _Metadata:
    """TransactionMetadata: what a coordinator says of a transaction, and its participants."""

    def __init__(
        self, service: BrokerService, spread: ScatterGather, coordinator: AsyncCoordinator
    ) -> None:
        self._service, self._spread, self._coordinator = service, spread, coordinator

    async def of(self, found: TransactionDescription) -> dict[str, Any]:
        name = found.transaction
        answer: dict[str, Any] = {
            "txnId": str(name),
            "status": found.status,
            "openTimestamp": found.start_ms,
            "timeoutAt": found.timeout_ms,
            **({"owner": found.owner} if found.owner else {}),
            "producedPartitions": {},
            "ackedPartitions": {},
        }
        here = partial(in_buffer_stats, transaction=name)
        for topic in found.partitions:
            answer["producedPartitions"][topic] = await self._ask(topic, name, "", here)
        for topic, subscription in found.subscriptions:
            here = partial(in_pending_acks_stats, subscription=subscription, transaction=name)
            acked = answer["ackedPartitions"].setdefault(topic, {})
            acked[subscription] = await self._ask(topic, name, subscription, here)
        if (end := self._coordinator.ends.get(name.least)) is not None:
            errors = {" ".join(where): error for where, error in end.errors.items()}
            answer["end"] = {"since": end.since_ms, "errors": errors}
        return answer

    async def _ask(
        self,
        topic: str,
        name: TransactionId,
        subscription: str,
        here: Callable[..., Awaitable[dict[str, Any]]],
    ) -> dict[str, Any]:
        """What a participant knows; it may be gone, which is no reason to tell nothing."""
        of = TopicName.parse(topic)
        call = BrokerCall("GET", participant_path(of, subscription, name))
        try:
            found: dict[str, Any] = await self._spread.on_owner(
                of, lambda: here(self._service, of), lambda: call
            )
        except (ApiError, BrokerError) as error:
            return {"error": str(error)}
        return found


@routes.post(
    "/abortTransaction/{mostSigBits}/{leastSigBits}",
    statuses={**_NOT_FOUND, 409: "It is being committed"},
)
async def abort_transaction(
    coordinators: Coordinators, spread: Spread, mostSigBits: int, leastSigBits: int
) -> None:
    """Abort a transaction.

    503 after 20 seconds: the abort is decided, but some topic or subscription doesn't have it yet.
    """

    async def abort(coordinator: AsyncCoordinator) -> None:
        answer = asyncio.get_running_loop().create_future()

        def done(result: TransactionId | BrokerError) -> None:
            if not answer.done():
                answer.set_result(result)

        coordinator.core.end(done, leastSigBits, commits=False)
        coordinator.run()
        try:
            async with asyncio.timeout(_ABORT_S):
                result = await answer
        except TimeoutError:
            name = TransactionId(mostSigBits, leastSigBits)
            raise ServiceNotReadyError(
                f"Transaction {name} is being aborted: see its transactionMetadata for who doesn't"
                " have the end yet"
            ) from None
        if isinstance(result, BrokerError):
            raise result

    await _at_owner(coordinators, spread, mostSigBits, abort)


@routes.post("/transactionCoordinator/replicas", statuses={406: "Not more than now, or too many"})
async def scale_coordinators(
    service: Service,
    coordinators: Coordinators,
    body: Annotated[int, Body(int, 32, missing="The number of coordinators is missing")],
) -> None:
    """Raise the number of coordinators; clients use the new ones once they are started again."""
    if body > (limit := partitions_max(service.config)):
        raise ApiError(406, f"At most {limit} coordinators")
    with answer_for(NotAllowedError, 406):
        await coordinators.grow(body)
