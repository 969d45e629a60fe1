"""Acknowledgements of a consumer on another broker."""

import asyncio
from typing import Any, cast

import pytest

from magnetar.broker.client import client_consumer
from magnetar.broker.client.client_consumer import ClientConsumer
from magnetar.broker.errors import PersistenceError, ServiceNotReadyError
from magnetar.broker.protocol.topic_name import TopicName


class FakeConnection:
    def __init__(self) -> None:
        self.answers: list[asyncio.Future[Any]] = []

    def next_id(self) -> int:
        return 1

    def begin(self, command: object) -> asyncio.Future[Any]:
        self.answers.append(asyncio.get_running_loop().create_future())
        return self.answers[-1]

    def no_answer(self) -> ServiceNotReadyError:
        return ServiceNotReadyError("too late")


def consumer_with_acks() -> tuple[ClientConsumer, FakeConnection]:
    connection = FakeConnection()
    consumer = ClientConsumer(cast("Any", connection), TopicName.parse("a/b/c"), None)
    consumer.acknowledge(None, [(1, 2)])
    consumer.acknowledge_batch(None, (1, 3), [5])
    return consumer, connection


async def test_flush_waits_for_all_acks_and_tells_of_a_failure_once() -> None:
    tasks = asyncio.all_tasks()
    consumer, connection = consumer_with_acks()
    assert asyncio.all_tasks() == tasks, "no task for each acknowledgement"
    flush = asyncio.ensure_future(consumer.flush())
    connection.answers[0].set_exception(PersistenceError("lost"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not flush.done()
    connection.answers[1].set_result(None)
    with pytest.raises(PersistenceError, match="lost"):
        await flush
    await consumer.flush()


async def test_acks_without_an_answer_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_consumer, "ANSWER_S", 0.01)
    consumer, connection = consumer_with_acks()
    with pytest.raises(ServiceNotReadyError, match="too late"):
        await consumer.flush()
    assert all(answer.cancelled() for answer in connection.answers)
    await consumer.flush()
