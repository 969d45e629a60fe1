"""The console in a browser: its broker dies, a proxy is in front, pages and names are hostile.

`make test-console` runs them; the first tells of a first start as well.
"""

import os
import re
from collections.abc import Iterator
from typing import Final

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.chromium import CHROMIUM, Watch, chromium
from tests.official_client import client_of
from tests.prefix_proxy import PrefixProxy
from tests.standalone_process import StandaloneProcess

TOPIC: Final = "persistent/public/default/faults"
HOSTILE: Final = "<img src=x onerror=document.title='owned'>\"'\u202e\u2066\u200b"
PREFIX: Final = "/tools/pulsar"
EVIL: Final = "http://evil.example"

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: no test with a browser"),
    pytest.mark.skipif(not os.environ.get("MAGNETAR_AXE"), reason="make test-console"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium(
        "--host-resolver-rules=MAP *.example 127.0.0.1",
        "--disable-features=LocalNetworkAccessChecks",
    ) as found:
        yield found


def produce(server: StandaloneProcess, topic: str = TOPIC) -> None:
    body = {"producerName": "p", "messages": [{"payload": "x"}]}
    httpx.post(f"{server.admin_url}/topics/{topic}", json=body, timeout=60).raise_for_status()


def until(page: Page, selector: str, text: re.Pattern[str]) -> None:
    """The page's own clock goes on until it says so: nobody waits for its timers."""
    for _ in range(60):
        page.clock.run_for(2000)
        found = page.locator(selector)
        if text.search(found.inner_text() if found.count() else ""):
            return
        page.wait_for_timeout(50)  # what was asked for is on its way
    raise AssertionError(f"{selector} never says {text.pattern}: {found.all_inner_texts()}")


def test_a_first_start_and_a_broker_that_is_killed_and_comes_back(
    browser: Browser, server: StandaloneProcess
) -> None:
    with browser.new_page() as page:
        page.clock.install()
        page.goto(f"{server.admin_url}/console/")
        start = page.locator("section.first pre")
        expect(start).to_contain_text(f"magnetar produce --url {server.service_url}")
        produce(server)
        until(page, "main", re.compile("Messages in"))
        expect(start).to_have_count(0)

        server.kill()
        until(page, "#live-text", re.compile(r"No answer since .*, figures "))
        expect(page.locator("#main")).to_have_class("stale")
        colour = "getComputedStyle(document.querySelector('.fig dd')).color"
        grey = page.evaluate(colour)
        expect(page.locator("main")).to_contain_text("Messages in")  # what was known stays

        server.start(same_ports=True)
        until(page, "#live-text", re.compile("^Live"))
        expect(page.locator("#main")).not_to_have_class("stale")
        assert page.evaluate(colour) != grey
        expect(page.locator(".fig")).to_contain_text("1 topic")


def test_behind_a_proxy_below_a_path(browser: Browser, server: StandaloneProcess) -> None:
    produce(server)
    subscription = f"{server.admin_url}/admin/v2/{TOPIC}/subscription/s"
    assert httpx.put(subscription, timeout=60).status_code in (204, 409)
    with PrefixProxy(server.admin_url, PREFIX) as proxy, browser.new_page() as page:
        watch = Watch(page, proxy.url)
        page.goto(proxy.url)
        expect(page).to_have_url(f"{proxy.url}console/")
        page.get_by_role("navigation", name="Main", exact=True).get_by_text("Topics").click()
        page.get_by_role("link", name="faults").click()
        page.get_by_role("link", name=re.compile("^Subscriptions")).last.click()
        page.get_by_role("link", name="Open s").click()
        expect(page.locator("tr.open")).to_contain_text("s")
        with page.expect_response(re.compile("subscriptions")) as fetched:  # live, too
            pass
        assert fetched.value.status == 200
        page.keyboard.press("/")
        page.keyboard.type("bookies")
        expect(page.get_by_role("option").first).to_have_text("Bookies")
        page.keyboard.press("Enter")
        expect(page).to_have_url(f"{proxy.url}console/bookies")
        page.goto(f"{proxy.url}console/topic/{TOPIC}/do/skip?subscription=s")
        page.get_by_role("button", name="Skip all").click()
        expect(page).to_have_url(f"{proxy.url}console/topic/{TOPIC}/subscriptions")
        page.goto(f"{proxy.url}console/topic/{TOPIC}/do/delete")
        page.get_by_label("Type the name").fill("faults")
        page.get_by_role("button", name="Delete topic").click()
        expect(page).to_have_url(f"{proxy.url}console/topics")
        assert watch.complaints == []


def test_names_that_are_markup_or_turn_the_direction(
    browser: Browser, server: StandaloneProcess
) -> None:
    name = "".join(f"%{each:02X}" for each in HOSTILE.encode())
    topic = f"persistent/public/default/{name}"
    produce(server, topic)
    subscription = f"{server.admin_url}/admin/v2/{topic}/subscription/{name}"
    assert httpx.put(subscription, timeout=60).is_success
    with browser.new_page() as page:
        watch = Watch(page, server.admin_url)
        paths = ("", "topics", "subscriptions", "namespaces", f"find?q={name}")
        tabs = ("", "/subscriptions", "/messages", "/storage", "/policies", "/do/delete")
        for path in (*paths, *(f"topic/{topic}{tab}" for tab in tabs)):
            page.goto(f"{server.admin_url}/console/{path}")
            text = page.locator("body").inner_text()
            assert not set(HOSTILE) & set("\u202e\u2066\u200b") & set(text), path
            assert page.locator("img").count() == 0, path
            assert "owned" not in page.title()[:5], path
        assert page.title().startswith("Delete topic")
        page.keyboard.press("/")
        page.keyboard.type("<img")
        expect(page.get_by_role("option").first).to_contain_text("⟨U+202E⟩")
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_contain_text("<img src=x")
        assert watch.complaints == []


_AWAY: Final = "http://away.example/"
_PAYLOADS: Final = (
    f"<script>document.title='owned'</script><img src={_AWAY}1 onerror=document.title='owned'>",
    f"<svg onload=document.title='owned'><use href={_AWAY}2></svg><meta http-equiv=refresh"
    f" content='0;url={_AWAY}3'><base href={_AWAY}><link rel=stylesheet href={_AWAY}4>",
    f'{{"a</pre><iframe src={_AWAY}5>": "javascript:document.title=\'owned\'", "u": "{_AWAY}6"}}',
    f"</textarea></template><form action={_AWAY}7>"
    "<button autofocus onfocus=document.title='owned'>",
    "{{ 7 * 7 }}${7 * 7}<b hx-get='/console/' hx-trigger=load>\u202e\x00\x1b[2J",
)


def test_messages_and_clients_that_are_markup(browser: Browser, server: StandaloneProcess) -> None:
    topic = "persistent/public/default/markup"
    with client_of(server.service_url) as client:
        name = f"persistent://{topic.partition('/')[2]}"
        producer = client.create_producer(name, producer_name=_PAYLOADS[0])
        consumer = client.subscribe(name, "s", consumer_name=_PAYLOADS[1])
        ids = [
            producer.send(each.encode(), properties={each: each}, partition_key=each)
            for each in _PAYLOADS
        ]
        messages = [f"{each.ledger_id()}:{each.entry_id()}" for each in ids]
        looks = ("", "&show=raw", "&show=hex")
        paths = (
            *("producers", "subscriptions?open=s", "messages?position=earliest"),
            "messages?position=earliest&columns=.u,properties",
            *(f"messages?id={each}{look}" for each in messages for look in looks),
            *(f"produce?from={each}" for each in messages),
        )
        with browser.new_page() as page:
            watch = Watch(page, server.admin_url)
            for path in paths:
                page.goto(f"{server.admin_url}/console/topic/{topic}/{path}")
                foreign = page.locator("img, iframe, base, main svg use, [autofocus], [hx-get]")
                assert foreign.count() == 0, path
                assert page.url.startswith(server.admin_url), path
                assert page.title()[:5] != "owned", path
                assert watch.complaints == [], path
            page.goto(f"{server.admin_url}/console/topic/{topic}/messages?id={messages[0]}")
            expect(page.locator("main")).to_contain_text("<script>document.title='owned'</script>")
        consumer.close()


def test_forms_and_names_of_other_sites_are_refused(
    browser: Browser, server: StandaloneProcess
) -> None:
    produce(server)
    assert httpx.put(
        f"{server.admin_url}/admin/v2/{TOPIC}/subscription/kept", timeout=60
    ).status_code in (204, 409)
    path = f"console/topic/{TOPIC}/do/unsubscribe?subscription=kept"
    with browser.new_page() as page:
        page.goto(f"{server.admin_url}/{path}")
        token = page.locator("[name=token]").input_value()
        form = (
            f'<form method="post" action="{server.admin_url}/{path}">'
            f'<input name="token" value="{token}"><input name="name" value="kept"></form>'
        )
        page.route(f"{EVIL}/", lambda route: route.fulfill(body=form, content_type="text/html"))
        page.goto(f"{EVIL}/")
        with page.expect_response(f"{server.admin_url}/{path}") as sent:
            page.evaluate("document.forms[0].submit()")
        assert sent.value.status == 403  # even with a token that is good
        page.unroute_all()
        rebound = page.goto(f"{EVIL}:{server.web_port}/console/")
        assert rebound is not None
        assert rebound.status == 421
    stats = httpx.get(f"{server.admin_url}/admin/v2/{TOPIC}/stats", timeout=60).json()
    assert "kept" in stats["subscriptions"]
