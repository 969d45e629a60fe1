"""Messages that are sent again, with the official client: stored once, whoever dies in between."""

import random
from pathlib import Path

import httpx
import pulsar
import pytest

from tests.standalone_process import StandaloneProcess

TOPIC = "persistent://public/default/once"
NUMBERS = range(1, 601)  # this client takes a sequence id of 0 for none
ROUNDS = 4
NAME = "the-one-producer"


def everything(client: pulsar.Client) -> list[bytes]:
    """The payloads of all stored messages, in order."""
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(60_000).data())
    reader.close()
    return found


@pytest.mark.parametrize("batching", [False, True])
def test_a_producer_that_starts_over_stores_each_message_once(
    tmp_path: Path, batching: bool
) -> None:
    """Sends the same numbered messages again and again; the broker is killed while it does."""
    rng = random.Random(int(batching))
    with StandaloneProcess(
        tmp_path / "data", "--set", "brokerDeduplicationEnabled=true"
    ) as process:
        client = pulsar.Client(process.service_url, operation_timeout_seconds=60)
        client.subscribe(TOPIC, "keeper").close()  # holds back trimming
        for round_ in range(ROUNDS):
            producer = client.create_producer(
                TOPIC,
                NAME,
                batching_enabled=batching,
                batching_max_publish_delay_ms=1,
                batching_max_messages=rng.choice((2, 7, 50)),
                send_timeout_millis=120_000,
                block_if_queue_full=True,
            )
            kill_at = rng.choice(NUMBERS[300:]) if round_ < ROUNDS - 1 else -1
            for number in NUMBERS:
                producer.send_async(b"%d" % number, lambda *_: None, sequence_id=number)
                if number == kill_at:
                    process.kill()
                    process.start(same_ports=True)
            producer.flush()
            assert producer.last_sequence_id() == NUMBERS[-1]
            producer.close()
        assert [int(text) for text in everything(client)] == list(NUMBERS)
        stats = httpx.get(
            f"{process.admin_url}/admin/v2/persistent/public/default/once/stats", timeout=60
        ).json()
        assert stats["deduplicationStatus"] == "Enabled"
        # Who comes back under the name goes on behind its last message, and isn't dropped.
        again = client.create_producer(TOPIC, NAME)
        again.send(b"more")
        again.close()
        for text in ("by rest", "by rest again"):
            [result] = httpx.post(
                f"{process.admin_url}/topics/persistent/public/default/once",
                json={"producerName": NAME, "messages": [{"payload": text}]},
                timeout=60,
            ).json()["messagePublishResults"]
            assert not result["messageId"].startswith("-1"), result
        assert everything(client)[len(NUMBERS) :] == [b"more", b"by rest", b"by rest again"]
        client.close()
