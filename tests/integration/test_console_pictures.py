"""The pictures of the docs, taken of a broker that serves a small shop.

`make console-pictures` writes them to docs/_static/console. Otherwise the same pictures are made
and thrown away: the test looks at what is on them and at their size, never at pixels.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pulsar
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.chromium import CHROMIUM, chromium, picture
from tests.official_client import client_of
from tests.standalone_process import StandaloneProcess
from tests.waiting import wait_until

PLACE: Final = os.environ.get("MAGNETAR_DOCS_PICTURES", "")
BYTES_MAX: Final = 80_000
"""Of a picture: they are in every checkout for ever."""
ORDERS: Final = "shop/retail/orders"
SETTINGS: Final = {
    "maxUnackedMessagesPerConsumer": "200",
    "statsUpdateFrequencyInSecs": "2",
    "webConsoleEnvironment": "staging:yellow",
    "clusterName": "berlin",
}

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: no test with a browser"),
    pytest.mark.skipif(
        not (PLACE or os.environ.get("MAGNETAR_AXE")), reason="half a minute: make test-console"
    ),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@contextmanager
def _shop(server: StandaloneProcess) -> Iterator[None]:
    """Producers that send, consumers that keep up, hold back, or are missing."""
    with httpx.Client(base_url=f"{server.admin_url}/admin/v2", timeout=60) as admin:
        tenant = {"adminRoles": [], "allowedClusters": ["berlin"]}
        assert admin.put("/tenants/shop", json=tenant).is_success
        for name in ("retail", "web"):
            assert admin.put(f"/namespaces/shop/{name}").is_success
        assert admin.put("/persistent/shop/web/clicks/partitions", json=4).is_success
    with client_of(server.service_url) as client:
        _consume(client)
        stop = threading.Event()
        sender = threading.Thread(target=_send, args=(client, stop))
        sender.start()
        try:
            yield
        finally:
            stop.set()
            sender.join()


def _consume(client: pulsar.Client) -> None:
    def acknowledge(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        consumer.acknowledge(message)

    def hold(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        """It never gets to the acknowledgement."""

    def subscribe(topic: str, name: str, listener: Any, consumer: str) -> None:
        client.subscribe(
            f"persistent://{topic}",
            name,
            pulsar.ConsumerType.Shared,
            message_listener=listener,
            consumer_name=consumer,
        )

    subscribe(ORDERS, "billing", hold, "billing-1")
    subscribe(ORDERS, "billing", hold, "billing-2")
    subscribe(ORDERS, "warehouse", acknowledge, "warehouse-1")
    subscribe("shop/retail/payments", "ledger", acknowledge, "ledger-1")
    subscribe("shop/web/clicks", "dashboard", acknowledge, "dashboard-1")
    client.subscribe("persistent://shop/web/clicks", "nightly-report").close()


def _send(client: pulsar.Client, stop: threading.Event) -> None:
    """Forty orders a second, and what comes with them, until it is told to stop."""
    producers = [
        client.create_producer(f"persistent://shop/{name}", producer_name=f"till-{at}")
        for at, name in enumerate(("retail/orders", "retail/payments", "web/clicks"), 1)
    ]
    number = 0
    while not stop.wait(0.025):
        number += 1
        status = "declined" if number % 7 == 0 else "paid"
        order = f'{{"order":{1000 + number},"status":"{status}","total":{number * 37 % 900}.90}}'
        properties = {"region": "eu" if number % 3 else "us"}
        for producer in producers:
            producer.send_async(
                order.encode(), _look, partition_key=f"c-{number % 40}", properties=properties
            )


def _look(result: pulsar.Result, _: Any) -> None:
    assert result in (pulsar.Result.Ok, pulsar.Result.AlreadyClosed), result


@pytest.fixture(scope="module")
def console(server: StandaloneProcess) -> Iterator[str]:
    """Of a shop with two points of history and a subscription whose consumers hold too much."""
    with _shop(server), httpx.Client(base_url=server.admin_url, timeout=60) as client:

        def is_there() -> bool:
            points = client.get("/admin/v2/history").json()["times"]
            why = client.get(f"/admin/v2/persistent/{ORDERS}/explain").json()["billing"]
            return len(points) > 2 and why["reason"] != "delivering"

        wait_until(is_there, "a chart and a subscription that is held up", seconds_max=120)
        yield f"{server.admin_url}/console/"


PICTURES: Final = (
    ("overview", "", 1280, 800),
    ("topics", "topics", 1280, 480),
    ("subscription", f"topic/persistent/{ORDERS}/subscriptions?open=billing", 1280, 640),
    (
        "messages",
        f"topic/persistent/{ORDERS}/messages?filter=value.status+%3D+%22declined%22",
        1280,
        640,
    ),
    ("phone", "", 390, 780),
)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures_of_the_docs(browser: Browser, console: str, tmp_path: Path, scheme: Any) -> None:
    with browser.new_context(color_scheme=scheme, locale="en-GB") as context:
        page = context.new_page()
        for name, path, width, height in PICTURES:
            page.set_viewport_size({"width": width, "height": height})
            page.goto(console + path)
            _is_worth_a_picture(page, name)
            size = picture(page, Path(PLACE or tmp_path) / f"{name}-{scheme}.webp")
            assert size < BYTES_MAX, name


def _is_worth_a_picture(page: Page, name: str) -> None:
    """A page of errors would be a picture as well."""
    expect(page.locator(".fail")).to_have_count(0)
    expect(page.locator("main")).to_contain_text(
        {
            "overview": "billing",
            "topics": "orders",
            "subscription": "unacknowledged",
            "messages": "declined",
            "phone": "billing",
        }[name]
    )
