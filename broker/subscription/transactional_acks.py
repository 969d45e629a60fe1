"""Acknowledgements in transactions: what they mean for a subscription's cursor and dispatcher."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from magnetar.broker.dispatch.interfaces import CursorView, remaining_messages
from magnetar.broker.errors import BrokerError, NotAllowedError
from magnetar.broker.subscription.consumer import Consumer
from magnetar.broker.subscription.subscription import SINGLE_ACTIVE, AckDone, after
from magnetar.broker.transaction.pending_ack_log import (
    OWN_NAME,
    PENDING_ACKS,
    PendingAckLog,
    UnstoredPendingAckLog,
    pending_ack_log_name,
)
from magnetar.broker.transaction.pending_ack_view import PendingAckView
from magnetar.broker.transaction.pending_acks import PendingAck
from magnetar.broker.transaction.transaction_id import TransactionId
from magnetar.managed_ledger.cursor.ack_state import mask_to_words
from magnetar.managed_ledger.errors import InvalidPositionError
from magnetar.managed_ledger.position import Position

if TYPE_CHECKING:
    from magnetar.broker.subscription.persistent_subscription import PersistentSubscription


class TransactionalAcks:
    """There is one once a transaction has acknowledged something, in this load or an earlier one,
    or has ended without having done so."""

    def __init__(self, subscription: PersistentSubscription, naming: int | None = None) -> None:
        """Args:
        naming: how the log is named; None: there is none yet.
        """
        self._subscription = subscription
        self.cursor = subscription.cursor
        service, ledger = subscription.topic.service, subscription.ledger
        name = pending_ack_log_name(ledger.name, subscription.name, naming or OWN_NAME)
        log = PendingAckLog if subscription.durable else UnstoredPendingAckLog
        self.log = log(
            *(self, name, service.ledgers, ledger.config, service.run), is_new=naming is None
        )

    def cover(self, cursor: CursorView) -> CursorView:
        """What a dispatcher sees of the cursor."""
        return PendingAckView(cursor, self.log)

    def acknowledge(
        self,
        consumer: Consumer | None,
        transaction: TransactionId,
        acks: Sequence[PendingAck],
        done: AckDone,
        *,
        cumulative: bool,
        refused: Callable[[], None] | None = None,
    ) -> None:
        """See `PersistentSubscription.acknowledge_in_transaction`."""
        if not self.log.is_open:
            again = partial(self.acknowledge, consumer, transaction, acks, done, refused=refused)
            self._subscription.topic.service.run(self._when_open(again, done, cumulative))
            return
        try:
            self._subscription.require_settled()
            self._check(acks, cumulative=cumulative)
            if cumulative:
                self.log.acknowledge_cumulative(transaction, acks[0], done)
            else:
                self.log.acknowledge(transaction, acks, done)
        except BrokerError as error:
            if refused is None:
                done(error)
            else:
                refused()
            return
        if not cumulative:
            self._withhold(consumer, acks)
        self._subscription.acknowledged(consumer, len(acks))

    async def _when_open(self, again: partial[None], done: AckDone, cumulative: bool) -> None:
        try:
            await self.log.open()
        except BrokerError as error:
            done(error)
        else:
            again(cumulative=cumulative)

    async def acknowledge_many(
        self,
        consumer: Consumer | None,
        transaction: TransactionId,
        parts: Iterable[Sequence[PendingAck]],
        done: AckDone,
    ) -> None:
        """As ``acknowledge``, in a turn of the loop for each part, which has at least one.

        All are checked before the first one is taken. So none is if one is refused, unless somebody
        else acknowledges the same, or ends the transaction, within these turns.
        """
        checked, taken = list[Sequence[PendingAck]](), dict[Position, int]()
        try:
            await self.log.open()
            for acks in parts:
                self._subscription.require_settled()
                self._check(acks, cumulative=False)
                self.log.core.check(transaction, acks, taken)
                checked.append(acks)
                await asyncio.sleep(0)
        except (BrokerError, InvalidPositionError) as error:
            done(error)
            return
        one_done = after(done, len(checked))
        for acks in checked:
            self.acknowledge(consumer, transaction, acks, one_done, cumulative=False)
            await asyncio.sleep(0)

    def _check(self, acks: Sequence[PendingAck], *, cumulative: bool) -> None:
        subscription = self._subscription
        if cumulative and subscription.sub_type not in SINGLE_ACTIVE:
            raise NotAllowedError("Cumulative acknowledgements need an exclusive subscription")
        end = subscription.ledger.last_confirmed
        for ack in acks:
            # A client may name any number: no record has one below 0.
            if ack.position > end or ack.position[0] < 0 or ack.position[1] < 0:
                raise NotAllowedError("The topic doesn't have this message yet")

    def _withhold(self, consumer: Consumer | None, acks: Sequence[PendingAck]) -> None:
        if (dispatcher := self._subscription.dispatcher) is None:
            return
        whole: list[Position] = []
        for ack in acks:
            left = self.log.core.batch_ack_set(ack.position) if ack.left else None
            if left:
                dispatcher.core.on_batch_acked(ack.position, remaining_messages(left))
            else:
                whole.append(ack.position)
        dispatcher.core.on_withheld(consumer, whole)

    # --- what follows of the log, see `CommittedAcks`

    async def note_pending_acks(self) -> None:
        await self._subscription.keep_property(PENDING_ACKS, OWN_NAME)

    def acknowledge_committed(
        self, individual: Sequence[PendingAck], cumulative: PendingAck | None
    ) -> None:
        subscription = self._subscription
        if whole := [ack.position for ack in individual if not ack.left]:
            subscription.acknowledge(None, whole)
        for ack in individual:
            if ack.left:
                subscription.acknowledge_batch(None, ack.position, mask_to_words(ack.left))
        if cumulative is not None:
            words = mask_to_words(cumulative.left)
            subscription.acknowledge_cumulative(None, cumulative.position, ack_set=words)

    def redeliver_aborted(self, positions: Sequence[Position], *, is_last: bool) -> None:
        if (dispatcher := self._subscription.dispatcher) is None:
            return
        # Single active types send all again: once.
        if is_last or self._subscription.sub_type not in SINGLE_ACTIVE:
            dispatcher.core.deliver_again(positions)
            dispatcher.wake()
