"""``maxUnackedMessagesPerBroker``: how many messages may be unacknowledged on a whole broker.

What Shared and Key_Shared dispatchers of persistent topics report is added up. At the limit those
with more than their share wait; one goes on once its own are down to half of that, all of them
once the sum is below half of the limit.
"""

import logging
from collections.abc import Callable
from typing import Protocol

logger = logging.getLogger(__name__)


class _Member(Protocol):
    unacked: int
    waits_for_broker: bool
    budget: "UnackedBudget | None"


class UnackedBudget:
    """The sum, and which dispatchers wait. Without a limit a broker has none of these."""

    def __init__(self, limit: int, share: float) -> None:
        """
        Args:
            limit: messages of all dispatchers together, above 0.
            share: of the limit; a dispatcher with more waits once the limit is reached.
        """
        self.limit, self.limit_of_each = limit, int(limit * share)
        self.total = 0
        self.is_exceeded = False
        self._is_told = False  # it may come and go many times a second
        self._wake_of: dict[_Member, Callable[[], None]] = {}

    def join(self, dispatcher: _Member, wake: Callable[[], None]) -> None:
        """Count a dispatcher. ``wake`` is called when it has waited and may go on."""
        self._wake_of[dispatcher] = wake
        dispatcher.budget = self

    def leave(self, dispatcher: _Member) -> None:
        """Its consumers are gone: nothing of it is pending any more."""
        del self._wake_of[dispatcher]
        dispatcher.budget = None
        self._count(-dispatcher.unacked)

    def changed(self, dispatcher: _Member, messages: int) -> None:
        """So many more of its messages are unacknowledged, or fewer; it has counted them."""
        self._count(messages)
        if not self.is_exceeded:
            return
        if not dispatcher.waits_for_broker:
            dispatcher.waits_for_broker = dispatcher.unacked > self.limit_of_each
        elif dispatcher.unacked <= self.limit_of_each // 2:
            self._release(dispatcher)

    def _count(self, messages: int) -> None:
        self.total += messages
        if not self.is_exceeded:
            if self.total >= self.limit:
                self._exceed()
        elif 2 * self.total < self.limit:
            self._relax()

    def _exceed(self) -> None:
        self.is_exceeded = True
        for each in self._wake_of:
            each.waits_for_broker = each.unacked > self.limit_of_each
        logger.log(
            logging.DEBUG if self._is_told else logging.WARNING,
            "maxUnackedMessagesPerBroker=%d: as many messages are unacknowledged; subscriptions"
            " with more than %d wait for acknowledgements",
            self.limit,
            self.limit_of_each,
        )
        self._is_told = True

    def _relax(self) -> None:
        self.is_exceeded = False
        for each in [each for each in self._wake_of if each.waits_for_broker]:
            self._release(each)

    def _release(self, dispatcher: _Member) -> None:
        dispatcher.waits_for_broker = False
        self._wake_of[dispatcher]()
