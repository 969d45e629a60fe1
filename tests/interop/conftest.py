"""The official Python client against the server under test (Magnetar, or Apache Pulsar by URL)."""

from __future__ import annotations

import itertools
import json
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pulsar
import pytest

RECEIVE_MS = 30_000
"""How long a message may take that must come: only a broken server needs so long."""

_COUNTER = itertools.count()


@pytest.fixture
def client(service_url: str, topic: str) -> Iterator[pulsar.Client]:
    """Asks for ``topic`` so that it is closed before the topic is deleted."""
    client = pulsar.Client(
        service_url,
        operation_timeout_seconds=30,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    yield client
    client.close()


@pytest.fixture
def topic(admin: Admin) -> Iterator[str]:
    """A name of this test's own; it, its partitions and what is named after it are deleted.

    A Pulsar whose bookie refuses an entry tries it again for as long as the topic exists, each time
    with a new ledger: a topic left behind would slow down everybody's later tests.
    """
    name = f"interop-{uuid.uuid4().hex[:12]}-{next(_COUNTER)}"
    yield f"persistent://public/default/{name}"
    admin.delete_topics("public/default", name)


class Admin:
    """A few words of the admin REST API, with the standard library."""

    def __init__(self, url: str) -> None:
        self._url = url

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self._url + path, data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, _decode(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, _decode(error.read())

    def topic_path(self, topic: str) -> str:
        return "/admin/v2/" + topic.replace("://", "/")

    def create_partitioned(self, topic: str, partitions: int) -> None:
        status, answer = self.call("PUT", self.topic_path(topic) + "/partitions", partitions)
        assert status == 204, answer

    def delete_topics(self, namespace: str, prefix: str) -> None:
        """Delete every topic whose name starts so, whatever is connected to it."""
        for domain in ("persistent", "non-persistent"):
            for kind, end in (("/partitioned", "/partitions"), ("", "")):
                _, topics = self.call("GET", f"/admin/v2/{domain}/{namespace}{kind}")
                for topic in topics:
                    if topic.rsplit("/", 1)[1].startswith(prefix):
                        self.call("DELETE", f"{self.topic_path(topic)}{end}?force=true")


def _decode(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data.decode(errors="replace")


@pytest.fixture(scope="session")
def admin(admin_url: str) -> Admin:
    return Admin(admin_url)


def eventually(check: Callable[[], bool], seconds_max: float = 30.0) -> None:
    """Poll until ``check`` holds; fails at the deadline."""
    deadline = time.monotonic() + seconds_max
    while not check():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)
