"""`magnetar verify` with transactions: a broker is clean; bugs that are planted are found."""

import asyncio
import secrets
from collections.abc import Iterator
from typing import Any

import pytest

import magnetar
from magnetar.broker.cli.binary_client import topic_name
from magnetar.broker.cli.profiles import ClusterTarget
from magnetar.broker.cli.verify.cluster_admin import ClusterAdmin
from magnetar.broker.cli.verify.run import VerifySettings, run_rounds
from magnetar.broker.cli.verify.topic_check import Surroundings
from magnetar.broker.cli.verify.transfer_check import TRANSFER_TOPICS, TransferCheck
from magnetar.broker.subscription.transactional_acks import TransactionalAcks
from magnetar.broker.transaction.buffer import TopicTransactionBuffer
from magnetar.broker.verify.history import Rule
from magnetar.broker.verify.plan import PLAIN
from magnetar.broker.verify.transfers import Anomaly
from magnetar.broker.verify.verdict import TopicVerdict
from magnetar.embedding import EmbeddedBroker
from tests.nightly import NIGHTLY

COUNT = 300 if NIGHTLY else 10
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with magnetar.embedded(transactionCoordinatorEnabled=True) as broker:
        yield broker


def verdict_on(broker: EmbeddedBroker) -> tuple[TopicVerdict, dict[str, int]]:
    """And what was done."""
    target = ClusterTarget(broker.service_url, broker.web_url)
    around = Surroundings(target, ClusterAdmin(target, PATIENCE_S), PATIENCE_S, 0)
    name = f"persistent://public/default/transfers-{secrets.token_hex(4)}"
    topics = [topic_name(f"{name}-{number}") for number in range(TRANSFER_TOPICS)]

    async def run() -> TransferCheck:
        assert around.admin is not None
        for topic in topics:
            await around.admin.create(topic, PLAIN, PATIENCE_S)
        check = TransferCheck(around, topics, "7", COUNT)
        await check.run()
        return check

    check = asyncio.run(run())
    return check.verdict(), check.disturbances


def test_transfers_are_clean(broker: EmbeddedBroker) -> None:
    verdict, done = verdict_on(broker)
    assert verdict.violations == []
    ended = done["transaction committed"] + done["transaction aborted"]
    assert ended >= 0.8 * COUNT * TRANSFER_TOPICS
    assert verdict.stored >= 2 * done["transaction committed"]


@pytest.mark.parametrize(
    ("owner", "method", "answer", "anomaly"),
    [
        (TopicTransactionBuffer, "aborted_in", (), Anomaly.DIRTY),
        (TransactionalAcks, "acknowledge_committed", None, Anomaly.RETURNED),
    ],
)
def test_a_planted_bug_is_found(
    broker: EmbeddedBroker,
    monkeypatch: pytest.MonkeyPatch,
    owner: type[Any],
    method: str,
    answer: object,
    anomaly: Anomaly,
) -> None:
    monkeypatch.setattr(owner, method, lambda *_: answer)
    verdict, _ = verdict_on(broker)
    assert {each.rule for each in verdict.violations} == {Rule.TRANSACTION}
    assert any(each.text.startswith(f"{anomaly}: ") for each in verdict.violations)


@pytest.mark.skipif(not NIGHTLY, reason="the rest of a round takes 20 s: tests/nightly.py")
def test_a_round_has_transfers(broker: EmbeddedBroker) -> None:
    target = ClusterTarget(broker.service_url, broker.web_url)
    settings = VerifySettings("public/default", 7, 0.0, 60)
    outcome = asyncio.run(run_rounds(target, settings, lambda _: None))
    assert (outcome.violations, outcome.unjudged, outcome.unchecked) == (0, "", [])
    assert outcome.disturbances["transaction committed"] > 0
