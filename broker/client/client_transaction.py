"""A transaction as its client sees it: what may be done next, and what an answer means. Pure.

The coordinator forgets a transaction that has ended. So "not found" after an END_TXN whose answer
was lost may mean either: that one was carried out, or the transaction had timed out before.
"""

from enum import StrEnum
from typing import Final

from magnetar.broker.errors import (
    BrokerError,
    CoordinatorNotFoundError,
    InvalidTransactionStatusError,
    ServiceNotReadyError,
    TransactionNotFoundError,
)
from magnetar.broker.transaction.transaction_id import TransactionId


class ClientTransactionState(StrEnum):
    """Named as by Pulsar's clients, and UNKNOWN."""

    OPEN = "OPEN"
    COMMITTING = "COMMITTING"
    ABORTING = "ABORTING"
    COMMITTED = "COMMITTED"
    ABORTED = "ABORTED"
    ERROR = "ERROR"
    """This client has not ended it, but it has ended or ends; most likely it timed out."""
    UNKNOWN = "UNKNOWN"
    """Committed, or timed out and aborted: nobody can tell any more."""


_S: Final = ClientTransactionState
_ENDING: Final = {True: _S.COMMITTING, False: _S.ABORTING}
_ENDED: Final = {_S.COMMITTING: _S.COMMITTED, _S.ABORTING: _S.ABORTED}


class TransactionOperationFailedError(BrokerError):
    """A message or an acknowledgement of the transaction failed, so it was aborted."""


class TransactionOutcomeUnknownError(BrokerError):
    """The answer to a commit was lost, and the coordinator has forgotten the transaction."""


def is_retried(error: BrokerError) -> bool:
    """Whether the coordinator may answer when it is asked once more."""
    return isinstance(error, ServiceNotReadyError | CoordinatorNotFoundError)


class ClientTransaction:
    """Its participants, its failures, its state."""

    def __init__(self, id_: TransactionId) -> None:
        self.id = id_
        self.state = _S.OPEN
        self.failed: BrokerError | None = None
        """The first operation that failed; a commit becomes an abort then."""
        self._is_answer_lost = False  # an END_TXN was sent and not answered

    def check_open(self) -> None:
        """Raises InvalidTransactionStatusError: nothing can be added any more."""
        if self.state is not _S.OPEN:
            raise InvalidTransactionStatusError(f"Transaction {self.id} is {self.state}")

    def on_failed(self, error: BrokerError) -> None:
        """A message or an acknowledgement failed."""
        self.failed = self.failed or error

    def end(self, *, commits: bool) -> bool:
        """Begin its end, or go on with it; whether it is to be committed.

        Raises:
            InvalidTransactionStatusError: it has ended, or ends the other way.
        """
        commits = commits and self.failed is None
        if self.state is not _ENDING[commits]:
            self.check_open()
        self.state = _ENDING[commits]
        return commits

    def on_ended(self) -> None:
        """The coordinator has said so."""
        self.state = _ENDED[self.state]

    def on_refused(self, error: BrokerError) -> BrokerError | None:
        """The answer to END_TXN, or that none came. What its user is told; None: it has ended.

        Where the outcome is open the state stays, and `end` may be called again.
        """
        if isinstance(error, ServiceNotReadyError):
            self._is_answer_lost = True
        elif isinstance(error, TransactionNotFoundError):
            return self._on_not_found(error)
        elif isinstance(error, InvalidTransactionStatusError):
            # It ends the other way: nobody aborts but the coordinator itself, at its time-out.
            self.state = _S.ABORTED if self.state is _S.COMMITTING else _S.ERROR
        return error

    def _on_not_found(self, error: BrokerError) -> BrokerError | None:
        if not self._is_answer_lost:
            self.state = _S.ERROR
            return error
        if self.state is _S.ABORTING:  # carried out, or timed out: the same
            self.state = _S.ABORTED
            return None
        self.state = _S.UNKNOWN
        return TransactionOutcomeUnknownError(
            f"Transaction {self.id} was committed or has timed out: no answer to its commit came"
        )
