"""Numbers sent to topics while servers are hurt, and what must be there afterwards."""

import threading

import pulsar

from tests.official_client import client_of

TOPICS = [f"persistent://public/default/orders-{number}" for number in range(8)]


class Sender(threading.Thread):
    """Sends numbers to all topics in turn until told to stop; knows what was acknowledged."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._done = threading.Event()
        self.acknowledged: dict[str, list[int]] = {topic: [] for topic in TOPICS}

    @property
    def total(self) -> int:
        return sum(map(len, self.acknowledged.values()))

    def run(self) -> None:
        with client_of(self._url) as made:
            producers = {
                topic: made.create_producer(topic, send_timeout_millis=60_000) for topic in TOPICS
            }
            number = 0
            while not self._done.wait(0.02):  # leaves the machine to what is being started
                for topic, producer in producers.items():
                    producer.send(b"%d" % number)
                    self.acknowledged[topic].append(number)
                number += 1

    def stop(self) -> None:
        self._done.set()
        self.join(120)
        assert not self.is_alive()


def numbers_of(url: str, topic: str) -> list[int]:
    """All that a new reader sees, in order."""
    numbers = []
    with client_of(url) as made:
        reader = made.create_reader(topic, pulsar.MessageId.earliest)
        while reader.has_message_available():
            numbers.append(int(reader.read_next(30_000).data()))
    return numbers


def check_all(url: str, acknowledged: dict[str, list[int]]) -> None:
    """Everything acknowledged is there, in order; resends may repeat."""
    for topic, numbers in acknowledged.items():
        assert list(dict.fromkeys(numbers_of(url, topic))) == numbers
