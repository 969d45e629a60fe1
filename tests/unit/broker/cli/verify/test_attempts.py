"""What a cluster refuses for a while is tried again; who has no rights learns it at once."""

import asyncio

import pytest

from magnetar.broker.cli.verify import attempts
from magnetar.broker.cli.verify.attempts import NoProgressError, retried
from magnetar.broker.errors import AuthorizationError, BrokerError, ServiceNotReadyError


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "_PAUSE_S", 0.0)


def tried(answers: list[BrokerError | str], patience_s: float) -> str:
    async def work() -> str:
        match answers.pop(0):
            case BrokerError() as error:
                raise error
            case answer:
                return answer

    return asyncio.run(retried("no topic", work, patience_s))


def test_it_is_tried_until_it_succeeds() -> None:
    refusals: list[BrokerError | str] = [ServiceNotReadyError("moves")] * 3
    assert tried([*refusals, "done"], patience_s=60.0) == "done"


def test_patience_ends() -> None:
    with pytest.raises(NoProgressError, match="no topic: moves"):
        tried([ServiceNotReadyError("moves"), "done"], patience_s=-1.0)


def test_who_has_no_rights_does_not_wait() -> None:
    with pytest.raises(NoProgressError, match="no topic: not you"):
        tried([AuthorizationError("not you"), "done"], patience_s=60.0)
