"""``kill -9`` in mid-load, again and again: nothing acknowledged is lost, doubled, reordered."""

import random
import time
from pathlib import Path

import pytest

from tests.history import (
    TOPIC,
    Consumer,
    Producer,
    Session,
    assert_sessions,
    assert_stored,
    final_session,
    publish_last,
    read_all,
    wait_for_receipts,
)
from tests.nightly import NIGHTLY
from tests.raw_client import Position, RawClient
from tests.standalone_process import StandaloneProcess

KILLS = 20 if NIGHTLY else 7


@pytest.mark.slow
def test_history_survives_kills(tmp_path: Path) -> None:
    rng = random.Random(7)
    acknowledged: dict[int, Position] = {}
    sessions: list[Session] = []
    next_number = 0
    with StandaloneProcess(tmp_path / "data") as process:
        with RawClient(process.service_url) as reader:  # holds back trimming, never acknowledges
            reader.subscribe(TOPIC, "keeper")
        for _ in range(KILLS):
            producer = Producer(process.service_url, next_number, rng.choice((10, 1000, 50_000)))
            consumer = Consumer(process.service_url)
            consumer.start()
            producer.start()
            wait_for_receipts(producer, rng.randint(1, 1000))
            time.sleep(rng.random() * 0.2)  # any moment of the load is as good as another
            process.kill()
            producer.join()
            consumer.join()
            acknowledged.update(producer.receipts)
            next_number = producer.next_number
            sessions.append(consumer.session)
            process.start()
        url = process.service_url
        acknowledged[next_number] = last = publish_last(url, next_number)
        history = read_all(url, last)
        assert_stored(history, acknowledged, next_number + 1)
        assert_sessions(history, [*sessions, final_session(url)])
