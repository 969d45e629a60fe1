"""What the answers to END_TXN mean for a client's transaction."""

import pytest

from magnetar.broker.client.client_transaction import (
    ClientTransaction,
    ClientTransactionState,
    TransactionOutcomeUnknownError,
)
from magnetar.broker.errors import (
    CoordinatorNotFoundError,
    InvalidTransactionStatusError,
    PersistenceError,
    ServiceNotReadyError,
    TransactionNotFoundError,
)
from magnetar.broker.transaction.transaction_id import TransactionId

S = ClientTransactionState
LOST, MOVED = ServiceNotReadyError("lost"), CoordinatorNotFoundError("moved")
FORGOTTEN, ENDING = TransactionNotFoundError("forgotten"), InvalidTransactionStatusError("ending")


@pytest.mark.parametrize(
    ("commits", "answers", "state", "told"),
    [
        (True, [], S.COMMITTED, None),
        (False, [], S.ABORTED, None),
        (True, [LOST], S.COMMITTING, LOST),
        (True, [MOVED, FORGOTTEN], S.ERROR, FORGOTTEN),
        (False, [FORGOTTEN], S.ERROR, FORGOTTEN),
        (False, [LOST, FORGOTTEN], S.ABORTED, None),
        (True, [ENDING], S.ABORTED, ENDING),
        (False, [ENDING], S.ERROR, ENDING),
    ],
)
def test_what_answers_mean(
    commits: bool, answers: list[Exception], state: S, told: Exception | None
) -> None:
    transaction = ClientTransaction(TransactionId(0, 1))
    assert transaction.end(commits=commits) is commits
    last = None
    for answer in answers:
        last = transaction.on_refused(answer)  # type: ignore[arg-type]
    if not answers:
        transaction.on_ended()
    assert (transaction.state, last) == (state, told)


def test_a_commit_that_was_forgotten_behind_a_lost_answer_is_unknown() -> None:
    transaction = ClientTransaction(TransactionId(0, 1))
    transaction.end(commits=True)
    transaction.on_refused(LOST)
    assert isinstance(transaction.on_refused(FORGOTTEN), TransactionOutcomeUnknownError)
    assert transaction.state is S.UNKNOWN
    with pytest.raises(InvalidTransactionStatusError):
        transaction.end(commits=True)


def test_a_commit_may_be_asked_again_and_not_turned_round() -> None:
    transaction = ClientTransaction(TransactionId(0, 1))
    transaction.end(commits=True)
    transaction.on_refused(LOST)
    with pytest.raises(InvalidTransactionStatusError, match=r"\(0,1\) is COMMITTING"):
        transaction.end(commits=False)
    assert transaction.end(commits=True)


def test_a_failed_operation_turns_the_commit_into_an_abort() -> None:
    transaction = ClientTransaction(TransactionId(0, 1))
    transaction.on_failed(PersistenceError("disk"))
    assert not transaction.end(commits=True)
    transaction.on_ended()
    assert transaction.state is S.ABORTED
