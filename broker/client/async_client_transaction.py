"""Transactions of a client: coordinators found and asked, again where an answer is lost.

transactions = AsyncClientTransactions(cluster)
transaction = await transactions.new_transaction(timeout_ms=60_000)
await transaction.send(producer, entries)
await transaction.acknowledge(consumer, [position])
await transaction.commit()
"""

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, TypeVar

from magnetar.broker.client.async_client_connection import ANSWER_S, AsyncClientConnection
from magnetar.broker.client.client_consumer import ClientConsumer
from magnetar.broker.client.client_producer import ClientProducer
from magnetar.broker.client.client_transaction import (
    ClientTransaction,
    ClientTransactionState,
    TransactionOperationFailedError,
    is_retried,
)
from magnetar.broker.client.cluster_client import ClusterClient
from magnetar.broker.errors import BrokerError, NotAllowedError, ServiceNotReadyError
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.messages import Entry
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.transaction.transaction_id import TransactionId
from magnetar.managed_ledger.position import Position

_ASSIGN: Final = "persistent://pulsar/system/transaction_coordinator_assign"
_PAUSE_S: Final = (0.05, 2.0)
_T = TypeVar("_T")


class AsyncClientTransactions:
    """The coordinators of a cluster; new transactions take turns in them."""

    def __init__(self, cluster: ClusterClient, patience_s: float = ANSWER_S) -> None:
        """
        Args:
            patience_s: how long a coordinator is asked again before a call fails.
        """
        self._cluster, self._patience_s = cluster, patience_s
        self._assign = TopicName.parse(_ASSIGN)
        self._parts: list[TopicName] = []
        self._turn = itertools.count()
        self._connected: dict[int, AsyncClientConnection] = {}  # by coordinator

    async def new_transaction(self, timeout_ms: int) -> "AsyncClientTransaction":
        """Open one; its coordinator aborts it if it isn't ended in this time.

        Raises:
            NotAllowedError: the cluster has no transactions.
            BrokerError: no coordinator answers.
        """
        if not self._parts:
            parts = await self._cluster.parts(self._assign)
            if parts == [self._assign]:
                raise NotAllowedError("Transactions are not enabled (no coordinators)")
            self._parts = parts
        number = next(self._turn) % len(self._parts)
        command = pb.CommandNewTxn(txn_ttl_millis=timeout_ms, tc_id=number)
        answer = await self.ask(number, command)
        return self.transaction(TransactionId(answer.txnid_most_bits, answer.txnid_least_bits))

    def transaction(self, id_: TransactionId) -> "AsyncClientTransaction":
        """One that this or another client has opened."""
        return AsyncClientTransaction(self, ClientTransaction(id_))

    async def ask(
        self,
        number: int,
        command: Any,
        on_error: Callable[[BrokerError], BrokerError | None] = lambda error: error,
    ) -> Any:
        """Ask a coordinator, and again until it answers.

        Args:
            on_error: sees the error of each command that was sent, and may replace it.
        Returns:
            Its answer; None: ``on_error`` made none of an error.
        Raises:
            BrokerError: it refuses, or doesn't answer in time.
        """
        loop = asyncio.get_running_loop()
        deadline_s, pause_s = loop.time() + self._patience_s, _PAUSE_S[0]
        while True:
            error: BrokerError | None
            try:
                connection = await self._connection(number)
                try:
                    return await connection.call(command)
                except BrokerError as refused:
                    if (error := on_error(refused)) is None:
                        return None
            except BrokerError as unreachable:
                error = unreachable
            if not is_retried(error) or loop.time() + pause_s > deadline_s:
                raise error
            self._connected.pop(number, None)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S[1])

    async def _connection(self, number: int) -> AsyncClientConnection:
        known = self._connected.get(number)
        if known is None or known.closed:
            known = await self._cluster.owner(self._assign.partition(number))
            await known.call(pb.CommandTcClientConnectRequest(tc_id=number))
            self._connected[number] = known
        return known


class AsyncClientTransaction:
    """One transaction. Operations may be under way at the same time; its end waits for them."""

    def __init__(self, owner: AsyncClientTransactions, core: ClientTransaction) -> None:
        self._owner, self._core = owner, core
        self._registered: dict[object, asyncio.Task[None]] = {}  # partitions, (topic, subscription)
        self._operations: set[asyncio.Future[Any]] = set()

    @property
    def id(self) -> TransactionId:
        return self._core.id

    @property
    def state(self) -> ClientTransactionState:
        return self._core.state

    async def send(self, producer: ClientProducer, entries: Sequence[Entry]) -> list[Position]:
        """Send entries that name the transaction (`OutgoingMessage.transaction`); where each is.

        Raises:
            BrokerError: one isn't stored, as far as we know; the transaction can only be aborted.
        """
        self._core.check_open()
        return await self._operation(self._send(producer, entries))

    async def _send(self, producer: ClientProducer, entries: Sequence[Entry]) -> list[Position]:
        await self._register(producer.topic, self._add_partition(str(producer.topic)))
        places: list[Position] = [(-1, -1)] * len(entries)
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        left = len(entries)

        def on_answer(
            index: int, count: int, ledger: int, first: int, error: Exception | None
        ) -> None:
            nonlocal left
            left -= count
            places[index : index + count] = [(ledger, first + nth) for nth in range(count)]
            if error is not None and not stored.done():
                stored.set_exception(error)
            elif not left and not stored.done():
                stored.set_result(None)

        if entries:
            producer.publish(entries, on_answer)
            try:
                async with asyncio.timeout(ANSWER_S):
                    await stored
            except TimeoutError as error:
                raise ServiceNotReadyError(f"{producer.topic}: no receipt in time") from error
        return places

    async def acknowledge(
        self,
        consumer: ClientConsumer,
        message_ids: Iterable[pb.MessageIdData],
        *,
        cumulative: bool = False,
    ) -> None:
        """Acknowledge messages that the consumer got.

        Raises:
            TransactionConflictError: another acknowledgement has one of them.
            BrokerError: not acknowledged, as far as we know; as with ``send``.
        """
        self._core.check_open()
        await self._operation(self._acknowledge(consumer, list(message_ids), cumulative))

    async def _acknowledge(
        self, consumer: ClientConsumer, message_ids: list[pb.MessageIdData], cumulative: bool
    ) -> None:
        place = (str(consumer.topic), consumer.subscription_name)
        await self._register(place, self._add_subscription(*place))
        await consumer.acknowledge_in(self.id, message_ids, cumulative=cumulative)

    async def commit(self) -> None:
        """Returns when all of it counts.

        Raises:
            TransactionOperationFailedError: an operation failed, so it was aborted.
            TransactionOutcomeUnknownError: committed, or timed out.
            BrokerError: not committed; ``state`` says what is known. While it is COMMITTING this
                may be called again.
        """
        await self._end(commits=True)

    async def abort(self) -> None:
        """Returns when none of it counts.

        Raises:
            BrokerError: ``state`` says what is known.
        """
        await self._end(commits=False)

    async def check(self, partition: str) -> None:
        """Ask the coordinator whether it is open still: by a partition that it has, once more.

        Raises:
            BrokerError: it isn't, or nobody says.
        """
        await self._add_partition(partition)

    async def _end(self, *, commits: bool) -> None:
        if self._operations:
            await asyncio.wait(set(self._operations))
        is_commit = self._core.end(commits=commits)
        command = pb.CommandEndTxn(
            txnid_most_bits=self.id.most,
            txnid_least_bits=self.id.least,
            txn_action=pb.COMMIT if is_commit else pb.ABORT,
        )
        if await self._owner.ask(self.id.most, command, self._core.on_refused) is not None:
            self._core.on_ended()
        if commits and (failed := self._core.failed) is not None:
            raise TransactionOperationFailedError(
                f"Transaction {self.id} was aborted: {failed}"
            ) from failed

    async def _operation(self, running: Coroutine[Any, Any, _T]) -> _T:
        task = asyncio.ensure_future(running)
        self._operations.add(task)
        task.add_done_callback(self._operations.discard)
        try:
            return await task
        except BrokerError as error:
            self._core.on_failed(error)
            raise
        except asyncio.CancelledError:
            self._core.on_failed(ServiceNotReadyError("an operation was cancelled"))
            raise

    async def _register(self, place: object, asked: Coroutine[Any, Any, None]) -> None:
        """Once for each place, and before anything of the transaction goes there."""
        task = self._registered.get(place)
        if task is None:
            task = self._registered[place] = asyncio.ensure_future(asked)
        else:
            asked.close()
        await asyncio.shield(task)

    async def _add_partition(self, name: str) -> None:
        command = pb.CommandAddPartitionToTxn(
            txnid_most_bits=self.id.most, txnid_least_bits=self.id.least, partitions=[name]
        )
        await self._owner.ask(self.id.most, command)

    async def _add_subscription(self, topic: str, subscription: str) -> None:
        command = pb.CommandAddSubscriptionToTxn(
            txnid_most_bits=self.id.most,
            txnid_least_bits=self.id.least,
            subscription=[pb.Subscription(topic=topic, subscription=subscription)],
        )
        await self._owner.ask(self.id.most, command)
