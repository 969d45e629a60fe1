"""The console in a real browser: every page is whole, live, and asks nothing of other hosts.

A few pages in `make test`; `make test-console` looks at all of them, light and dark, wide and
narrow, asks axe (MAGNETAR_AXE: the path of axe.min.js) and leaves pictures in MAGNETAR_PICTURES.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.chromium import CHROMIUM, Watch, chromium
from tests.standalone_process import StandaloneProcess

AXE = os.environ.get("MAGNETAR_AXE", "")
PICTURES = os.environ.get("MAGNETAR_PICTURES", "")
TOPIC: Final = "persistent/public/default/console-orders"
HOSTILE: Final = "<script>document.title='owned'</script>\"'><b>\u202e"
PAGES: Final = (
    *(
        "",
        "topics",
        "subscriptions",
        "schemas",
        "namespaces",
        "brokers",
        "bookies",
        "settings",
        "audit",
        "roles",
        "roles/billing",
        "transactions",
        "keys",
        "about",
        "find?q=console",
        "messages",
        f"messages?topic={TOPIC.replace('/', '://', 1)}&columns=.a",
    ),
    f"topic/{TOPIC}",
    f"topic/{TOPIC}/subscriptions?open=billing",
    *(f"topic/{TOPIC}/{tab}" for tab in ("messages", "producers", "policies", "schema", "storage")),
    f"topic/{TOPIC}/permissions",
    f"topic/{TOPIC}/schema/new",
    "ns/public/default",
    f"topic/{TOPIC}/produce",
    f"topic/{TOPIC}/policies/retention",
    f"topic/{TOPIC}/policies/subscriptionTypesEnabled",
    f"topic/{TOPIC}/do/subscribe",
    f"topic/{TOPIC}/do/delete-schema",
    f"topic/{TOPIC}/do/move?subscription=billing",
    "tenant/public",
    "tenant/public/do/change",
    "do/create-tenant",
    "topics/do/create-topic?name=public%2Fdefault%2F",
    "ns/public/default/do/create-topic",
    "ns/public/default/do/split",
    "ns/public/default/do/grant?role=billing&actions=produce",
    "ns/public/default/do/clear-backlog",
    "settings/maxTenants/do/set",
    "settings/loadBalancerMsgThroughputMultiplierDifferenceShedderThreshold/do/set",
    "ns/public/default/policies",
    "ns/public/default/policies/backlogQuota%2Fdestination_storage",
    "nowhere",
)
FEW: Final = ("", "topics", f"topic/{TOPIC}/subscriptions?open=billing")
LOOKS: Final = (("light", 1440), ("dark", 1440), ("light", 390), ("dark", 390))

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium: no test with a browser")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def console(standalone: StandaloneProcess) -> str:
    """URL of the console of a broker with a topic whose names are hostile."""
    url = f"{standalone.admin_url}/admin/v2/{TOPIC}"
    with httpx.Client(timeout=60) as client:
        assert client.put(url).status_code in (204, 409)
        for name in ("billing", HOSTILE):
            path = httpx.URL(f"{url}/subscription/").join(_encoded(name))
            assert client.put(path).status_code in (204, 409)
        body = {"producerName": "p", "messages": [{"payload": "x"}]}
        assert client.post(f"{standalone.admin_url}/topics/{TOPIC}", json=body).is_success
    return f"{standalone.admin_url}/console/"


def _encoded(name: str) -> str:
    return "".join(f"%{each:02X}" for each in name.encode())


def _broker_pages(url: str) -> list[str]:
    (name,) = httpx.get(f"{url}admin/v2/brokers/standalone", timeout=60).json()
    tabs = ("", "/connections", "/settings", "/health")
    return [f"brokers/{_encoded(name)}{tab}" for tab in tabs]


def _violations(page: Page) -> list[Any]:
    """What axe finds; ``evaluate`` isn't bound by the page's own policy."""
    page.evaluate(Path(AXE).read_text() + ";0")
    found = page.evaluate("axe.run().then(r => r.violations.map(v => [v.id, v.nodes[0].html]))")
    return list(found)


@pytest.mark.parametrize(("scheme", "width"), LOOKS if AXE else LOOKS[:1])
def test_pages(browser: Browser, console: str, scheme: Any, width: int) -> None:
    height = 844 if width < 800 else 900
    own = console.removesuffix("console/")
    with browser.new_context(
        color_scheme=scheme, viewport={"width": width, "height": height}
    ) as context:
        page = context.new_page()
        watch = Watch(page, own)
        for path in (*PAGES, *_broker_pages(own)) if AXE else FEW:
            page.goto(console + path)
            expect(page.locator("main h1")).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
            assert page.locator(".fail").count() == 0, path
            assert page.title() != "owned"
            if AXE:
                assert _violations(page) == [], path
            if PICTURES:
                name = re.sub(r"\W+", "-", path).strip("-") or "overview"
                page.screenshot(path=f"{PICTURES}/{name}-{width}-{scheme}.png")
            allowed = "404" if path == "nowhere" else None
            assert [x for x in watch.complaints if not (allowed and allowed in x)] == [], path
            watch.complaints.clear()


def test_policies_have_the_whole_width_of_a_phone(browser: Browser, console: str) -> None:
    with browser.new_page(viewport={"width": 390, "height": 844}) as page:
        page.goto(console + "ns/public/default/policies")
        places = page.locator(".pol tbody tr").first.evaluate(
            "row => [...row.cells].map(each => each.getBoundingClientRect().toJSON())"
        )
    name, value, _source, step = places
    assert name["width"] > 250
    assert value["width"] > 330
    assert name["right"] <= step["left"] < step["right"] <= 390
    assert step["bottom"] <= value["top"]


def test_bundles_of_a_namespace_fit_a_phone(browser: Browser, console: str) -> None:
    """A range breaks between its ends only, and what can be done is on one line."""
    with browser.new_page(viewport={"width": 390, "height": 844}) as page:
        page.goto(console + "ns/public/default")
        served = page.locator(".bun tr", has_text="Unload…").first
        lines = served.locator("code").evaluate(
            """code => [...code.childNodes].filter(each => each.data).map(each => {
                const range = document.createRange()
                range.selectNode(each)
                return range.getClientRects().length
            })"""
        )
        steps = [each.bounding_box() for each in served.locator(".b").all()]
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert lines == [1, 1]
    assert len({each and each["y"] for each in steps}) == 1
    assert len(steps) == 2


def test_a_row_tells_once_that_nobody_consumes(browser: Browser, console: str) -> None:
    with browser.new_page(viewport={"width": 390, "height": 844}) as page:
        for query in ("", "?open=billing"):
            page.goto(f"{console}topic/{TOPIC}/subscriptions{query}")
            rows = page.locator("main tbody").first
            expect(rows.get_by_text("billing", exact=True)).to_be_visible()
            told = rows.locator("tr:has-text('billing'), tr[id$=-more]").all_inner_texts()
            assert " ".join(told).count("No consumer is connected.") == 1, told
            assert "0 consumers" not in " ".join(told)


def test_what_was_asked_fits_a_phone(browser: Browser, console: str) -> None:
    name = "no_topic_and_a_name_without_a_place_to_break_at"
    with browser.new_page(viewport={"width": 390, "height": 844}) as page:
        page.goto(f"{console}topic/persistent/public/default/{name}")
        expect(page.locator(".fail code").first).to_contain_text(name)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_figures_follow_and_what_is_selected_stays(
    browser: Browser, console: str, standalone: StandaloneProcess
) -> None:
    with browser.new_page() as page:
        page.goto(console + f"topic/{TOPIC}/subscriptions?open=billing")
        row = page.locator("tr", has_text="billing").first
        before = int(row.locator("td").nth(2).inner_text().replace(",", ""))
        page.keyboard.press("j")
        selected = page.locator("tr.cur").get_attribute("id")
        body = {"producerName": "p", "messages": [{"payload": "y"}]}
        url = f"{standalone.admin_url}/topics/{TOPIC}"
        assert httpx.post(url, json=body, timeout=60).is_success
        expect(row.locator("td").nth(2)).to_have_text(str(before + 1), timeout=60_000)
        assert page.locator("tr.cur").get_attribute("id") == selected
        count = page.locator("#menu a", has_text="Topics").locator(".mu")
        expect(count).to_have_text(re.compile(r"[1-9]"))
        expect(page.locator("#zone")).to_contain_text("times:")
        page.keyboard.press("p")
        expect(page.locator("#live-text")).to_have_text(re.compile(r"Paused, \d+ s old"))
        page.keyboard.press("/")
        expect(page.locator("#find")).to_be_focused()
        page.keyboard.type("no-such-topic")
        page.keyboard.press("Enter")
        expect(page.locator("main")).to_contain_text("Nothing has this in its name")


def test_rows_stay_where_they_are_until_somebody_sorts_again(
    browser: Browser, console: str, standalone: StandaloneProcess
) -> None:
    """Their figures follow, and so they do on a phone; a link of the page sorts them afresh."""
    base = f"{standalone.admin_url}/admin/v2/persistent/public/default"
    names = ["in-place-a", "in-place-b"]

    def send(name: str, count: int) -> None:
        body = {"producerName": "p", "messages": [{"payload": "x"}] * count}
        url = f"{standalone.admin_url}/topics/persistent/public/default/{name}"
        assert httpx.post(url, json=body, timeout=60).is_success

    for count, name in zip((3, 1), names, strict=True):
        assert httpx.put(f"{base}/{name}/subscription/s", timeout=60).status_code in (204, 409)
        send(name, count)
    with browser.new_page(viewport={"width": 390, "height": 844}) as page:
        page.goto(f"{console}topics?q=in-place-&sort=msgBacklog")
        rows = page.locator("tbody tr")
        expect(rows.locator("b")).to_have_text(names)
        again = page.get_by_role("link", name="sort again")
        expect(again).to_have_count(0)
        send(names[1], 9)
        expect(rows.nth(1).locator("td").nth(3)).to_have_text("10", timeout=60_000)
        expect(rows.locator("b")).to_have_text(names)
        page.keyboard.press("j")
        again.click()
        expect(rows.locator("b")).to_have_text(names[::-1])
        expect(again).to_have_count(0)
    with (
        browser.new_context(java_script_enabled=False) as context,
        context.new_page() as page,
    ):
        page.goto(f"{console}topics?q=in-place-&sort=msgBacklog")
        expect(page.locator("tbody b")).to_have_text(names[::-1])
        send(names[0], 20)
        page.reload()
        expect(page.locator("tbody b")).to_have_text(names)


@pytest.mark.parametrize("width", [1440, 390])
def test_everything_is_found_by_keys_alone(browser: Browser, console: str, width: int) -> None:
    with browser.new_page(viewport={"width": width, "height": 700}) as page:
        watch = Watch(page, console.removesuffix("console/"))
        page.goto(console + f"topic/{TOPIC}")
        page.keyboard.press("/")
        field, options = page.get_by_role("combobox"), page.get_by_role("option")
        expect(field).to_be_focused()
        page.keyboard.type("console-or")
        expect(options.first).to_have_text("console-orders public/default")
        expect(options.first).to_have_attribute("aria-selected", "true")
        expect(field).to_have_attribute("aria-expanded", "true")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.keyboard.press("ArrowDown")
        expect(options.nth(1)).to_have_attribute("aria-selected", "true")
        # A late answer to the same text leaves what was chosen.
        chosen = page.locator("[role=option][aria-selected=true]")
        href = chosen.get_attribute("href")
        options.first.evaluate("each => (each.dataset.old = true)")
        field.dispatch_event("focus")
        expect(page.locator("[data-old]")).to_have_count(0)
        expect(chosen).to_have_attribute("href", href or "?")
        expect(field).to_have_attribute("aria-activedescendant", chosen.get_attribute("id") or "?")
        if AXE:
            assert _violations(page) == []
        field.press_sequentially("d")  # nothing is chosen while the list is that of less text
        assert page.locator("[role=option][aria-selected=true]").count() == 0
        page.keyboard.press("Escape")
        expect(options).to_have_count(0)
        for text, at in (
            ("console-orders mess", f"topic/{TOPIC}/messages"),
            ("bookies", "bookies"),
        ):
            field.fill(text)
            expect(options.first).to_be_visible()
            expect(options.first).to_contain_text(re.compile(text.split()[0], re.I))
            page.keyboard.press("Enter")
            # The heading may be that of the page before; a page without its scripts has no keys.
            page.wait_for_url(f"{console}{at}*", wait_until="load")
            page.keyboard.press("/")
            expect(field).to_be_focused()
        field.fill("light or")
        expect(options.first).to_have_text("Light or dark")
        before = page.locator("html").get_attribute("data-theme")
        page.keyboard.press("Enter")
        assert page.locator("html").get_attribute("data-theme") != before
        assert watch.complaints == []


def test_letters_lead_to_pages_unless_they_are_switched_off(browser: Browser, console: str) -> None:
    with browser.new_page() as page:
        page.goto(console)
        for keys, heading in (
            ("gt", "Topics"),
            ("gs", "Subscriptions"),
            ("gm", "Messages"),
            ("go", "Overview"),
        ):
            page.keyboard.type(keys)
            expect(page.locator("h1")).to_have_text(heading)
        page.goto(console + "subscriptions?q=billing")
        page.keyboard.press("j")
        page.keyboard.press("m")
        page.wait_for_url("**/console-orders/messages?subscription=billing")
        page.goto(console + "topics?q=console-orders")
        page.keyboard.press("f")
        expect(page.locator("[data-filter]")).to_be_focused()
        page.keyboard.type("gt?m")  # letters, in a field
        expect(page.locator("[data-filter]")).to_have_value("gt?m")
        page.keyboard.press("Escape")
        page.keyboard.press("?")
        page.get_by_label("These keys do nothing").check()
        page.locator("h1").click()
        page.keyboard.type("gt/jp")
        assert page.url.endswith("/keys")
        expect(page.locator("#find")).not_to_be_focused()
        page.reload()
        expect(page.get_by_label("These keys do nothing")).to_be_checked()


def test_zone_and_columns_are_kept_in_the_browser(browser: Browser, console: str) -> None:
    with browser.new_context(timezone_id="Asia/Tokyo", locale="en-GB") as context:
        page = context.new_page()
        page.goto(console + f"topic/{TOPIC}/messages")
        at = page.locator("tbody time").first
        utc, shown = (at.get_attribute("datetime") or "")[11:19], at.inner_text()[-8:]
        assert (int(shown[:2]) - int(utc[:2])) % 24 == 9
        page.goto(console + "keys")
        page.get_by_label("Times in UTC").check()
        page.goto(console + f"topic/{TOPIC}/messages")
        expect(at).to_have_text(re.compile(utc))
        page.goto(console + "topics")
        page.get_by_text("Columns", exact=True).click()
        page.get_by_label("Stored").uncheck()
        stored = page.locator("th", has_text="Stored")
        expect(stored).to_be_hidden()
        with page.expect_response(console + "topics"):  # fresh figures
            pass
        expect(stored).to_be_hidden()
        expect(page.get_by_label("Stored")).to_be_visible()
        page.reload()
        expect(stored).to_be_hidden()
        titles, cells = (page.locator(each).count() for each in ("th:visible", "td:visible"))
        assert cells == page.locator("tbody tr").count() * titles


@pytest.mark.parametrize("width", [1440, 390])
def test_a_star_is_kept_in_the_browser(browser: Browser, console: str, width: int) -> None:
    with browser.new_page(viewport={"width": width, "height": 800}) as page:
        watch = Watch(page, console.removesuffix("console/"))
        page.goto(console + f"topic/{TOPIC}")
        page.get_by_label("Starred").focus()
        page.keyboard.press("Space")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        if AXE:
            assert _violations(page) == []
        page.goto(console + "topics")
        page.get_by_role("link", name=re.compile("^Starred")).click()
        expect(page.locator("tbody tr")).to_have_count(1)
        page.get_by_role("link", name="console-orders").click()
        expect(page.get_by_label("Starred")).to_be_checked()
        page.get_by_label("Starred").uncheck()
        page.goto(console + "topics?view=starred")
        expect(page.locator("main")).to_contain_text("No topic is starred yet")
        assert watch.complaints == []


def test_without_a_script_everything_is_found_on_a_page(browser: Browser, console: str) -> None:
    with browser.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(console + f"topic/{TOPIC}")
        page.locator("#find").fill("billing")
        page.keyboard.press("Enter")
        page.get_by_role("main").get_by_role("link", name="billing").click()
        expect(page.locator("tr.open")).to_contain_text("billing")


@pytest.mark.parametrize("width", [1440, 390])
def test_a_message_is_looked_at(browser: Browser, console: str, width: int) -> None:
    with browser.new_page(viewport={"width": width, "height": 800}) as page:
        watch = Watch(page, console.removesuffix("console/"))
        page.goto(console)
        page.keyboard.type("gm")
        page.get_by_role("textbox", name="Topic").fill("console-orders")
        page.get_by_label("Columns").fill(".status")
        page.get_by_role("button", name="Search").click()
        page.locator("tbody a code").first.click()
        message = page.get_by_role("region", name=re.compile("^Message "))
        expect(message).to_contain_text("not acknowledged")
        message.get_by_role("link", name="Hex").click()
        expect(message.locator("pre")).to_contain_text("00000000  ")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.locator("[name=columns]").input_value() == ".status"
        assert page.locator("b", has_text="owned").count() == 0
        if AXE:
            assert _violations(page) == []
        if PICTURES:
            page.screenshot(path=f"{PICTURES}/message-{width}.png")
        message.get_by_role("link", name="Close").click()
        expect(message).to_have_count(0)
        assert watch.complaints == []


def test_a_message_is_produced_and_produced_again(browser: Browser, console: str) -> None:
    value = f"{HOSTILE}\n  second line\n"
    with browser.new_page() as page:
        watch = Watch(page, console.removesuffix("console/"))
        page.goto(console + f"topic/{TOPIC}")
        page.get_by_role("link", name="Produce…", exact=True).click()
        page.locator("[name=value]").fill(value)
        page.locator("[name=key]").fill(HOSTILE)
        page.locator("[name=properties]").fill("a=1")
        page.locator("[name=delay]").fill("soon")
        page.get_by_role("button", name="Produce").click()
        expect(page.get_by_role("alert")).to_contain_text("a time is a number")
        expect(page.locator("[name=value]")).to_have_value(value)
        page.locator("[name=delay]").fill("")
        page.get_by_role("button", name="Produce").click()
        first = page.get_by_role("status").inner_text()
        page.get_by_role("link", name="Show it").click()
        expect(page.locator("pre")).to_contain_text("second line")
        for each in ("Copy", "Copy as command"):
            page.get_by_role("button", name=each, exact=True).click()
            expect(page.get_by_role("button", name="Copied").last).to_be_visible()
            expect(page.get_by_role("button", name=each, exact=True)).to_have_count(0)
        page.get_by_role("link", name="Produce again").click()
        expect(page.locator("[name=value]")).to_have_value(value)
        expect(page.locator("[name=key]")).to_have_value(HOSTILE)
        page.get_by_role("button", name="Produce again").click()
        expect(page.get_by_role("status")).to_contain_text("Stored as")
        assert page.get_by_role("status").inner_text() != first
        assert page.title() != "owned"
        assert [each for each in watch.complaints if "400" not in each] == []


def test_a_topic_is_created_subscribed_and_deleted(browser: Browser, console: str) -> None:
    with browser.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(console + "tenant/public")
        page.get_by_role("link", name="default").click()
        page.get_by_role("link", name="New topic…").click()
        page.get_by_label("Name").fill("made <here>")
        page.get_by_label("Partitions").fill("none")
        page.get_by_role("button", name="New topic").click()
        wrong = page.get_by_label("Partitions")
        expect(wrong).to_have_attribute("aria-invalid", "true")
        expect(wrong).to_have_accessible_description(re.compile("a whole number"))
        expect(page.get_by_label("Name")).to_have_value("made <here>")
        wrong.fill("2")
        page.get_by_role("button", name="New topic").click()
        expect(page.locator("h1")).to_have_text("made <here>")
        page.get_by_role("link", name=re.compile("^Subscriptions")).last.click()
        page.get_by_role("link", name="New subscription…").click()
        page.get_by_label("Name").fill("late")
        page.get_by_label("Begins at").select_option("earliest")
        page.get_by_role("button", name="New subscription").click()
        expect(page.locator("main")).to_contain_text("late")
        page.locator("main summary", has_text="More").click()
        page.get_by_role("link", name="Delete topic…").click()
        page.get_by_label("Type the name to confirm").fill("made <here>")
        page.get_by_role("button", name="Delete topic").click()
        expect(page.locator("h1")).to_contain_text("Topics")


def test_new_messages_are_followed(
    browser: Browser, console: str, standalone: StandaloneProcess
) -> None:
    name = TOPIC.replace("console-orders", "console-followed")
    url = f"{standalone.admin_url}/topics/{name}"

    def publish(*texts: str) -> None:
        body = {"messages": [{"payload": each, "key": each[:2]} for each in texts]}
        assert httpx.post(url, json=body, timeout=60).is_success

    publish("old")
    with browser.new_page() as page:
        watch = Watch(page, console.removesuffix("console/"))
        page.goto(console + f"topic/{name}/messages?filter=key+!%3D+no")
        rows, text = page.locator("#follow-rows tr"), page.locator("#follow-text")
        page.get_by_role("button", name="Follow").click()
        expect(text).to_have_text("Following: 0 new")
        publish(HOSTILE, "no, not this one", "second")
        expect(rows).to_have_count(2)
        expect(rows.nth(0)).to_contain_text("second")
        expect(rows.nth(1)).to_contain_text("<script>document.title='owned'</script>")
        expect(rows.nth(1)).to_contain_text("\u27e8U+202E\u27e9")
        page.get_by_role("button", name="Pause").click()
        expect(text).to_have_text("Paused")
        publish("while it is paused")
        page.get_by_role("button", name="Resume").click()
        expect(rows.nth(0)).to_contain_text("while it is paused")
        hide(page, True)
        expect(text).to_have_text("Paused, as this page is hidden")
        publish("while it is hidden")
        hide(page, False)
        expect(rows.nth(0)).to_contain_text("while it is hidden")
        expect(text).to_contain_text("Following")
        publish(*map(str, range(600)))
        # What a follower can't read in its share of a busy broker's time is skipped, and counted.
        expect(text).to_have_text(re.compile(" of 600|, [1-9][0-9]* entries skipped"))
        expect(rows.nth(0)).to_contain_text("599")
        rows.nth(0).get_by_role("link").click()
        expect(page.locator("pre")).to_have_text("599")
        assert page.title() != "owned"
        assert watch.complaints == []
        stats = httpx.get(f"{standalone.admin_url}/admin/v2/{name}/stats", timeout=60).json()
        assert stats["subscriptions"] == {}


def hide(page: Page, is_hidden: bool) -> None:
    """As if another tab was looked at."""
    page.evaluate(
        "is => { Object.defineProperty(document, 'hidden', { value: is, configurable: true });"
        " document.dispatchEvent(new Event('visibilitychange')); }",
        is_hidden,
    )


def test_nobody_shows_it_in_a_frame(browser: Browser, console: str) -> None:
    with browser.new_page() as page:
        page.set_content(f'<iframe src="{console}" width="800" height="600"></iframe>')
        page.wait_for_load_state("networkidle")
        assert all("Overview" not in frame.content() for frame in page.frames[1:])


_FOCUS: str = """() => {
    const at = document.activeElement, box = at.getBoundingClientRect();
    const isOutlined = [at, at.closest(".in, .find") ?? at].map(each => getComputedStyle(each))
        .some(style => style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2);
    const name = at.id || at.getAttribute("aria-label") || at.innerText;
    return [name, box.width > 0 && box.left >= 0, isOutlined];
}"""


@pytest.mark.parametrize("width", [1440, 390] if AXE else [1440])
def test_by_keyboard_everything_is_reached_and_seen(
    browser: Browser, console: str, width: int
) -> None:
    with browser.new_page(viewport={"width": width, "height": 900}) as page:
        page.emulate_media(reduced_motion="reduce")
        page.goto(console + "topics")
        reached = []
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement === document.body"):
                break
            name, is_there, is_outlined = page.evaluate(_FOCUS)
            assert is_there, name
            assert is_outlined, name
            reached.append(name)
        assert reached[:3] == ["Skip to content", "Magnetar, overview", "find"]
        assert len(reached) > 15  # and so to the end: nothing keeps the focus
        assert "console-orders" in reached
        moving = """[...document.querySelectorAll("*")].filter(each => {
            const { transitionDuration: lasts, animationName } = getComputedStyle(each);
            return lasts.split(", ").some(t => parseFloat(t)) || animationName !== "none";
        }).length"""
        assert page.evaluate(moving) == 0
        page.goto(console + "topics?q=console-orders")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")  # the skip link
        expect(page.locator("#main")).to_be_focused()
        page.keyboard.press("j")
        expect(page.get_by_role("link", name="console-orders")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_have_text("console-orders")


@pytest.mark.parametrize("width", [1440, 390])
def test_a_policy_is_edited(
    browser: Browser, console: str, standalone: StandaloneProcess, width: int
) -> None:
    rest = f"{standalone.admin_url}/admin/v2/{TOPIC}/retention"
    with browser.new_page(viewport={"width": width, "height": 700}) as page:
        watch = Watch(page, console.removesuffix("console/"))
        page.goto(console + f"topic/{TOPIC}/policies")
        page.get_by_role("link", name="Edit retention").click()
        page.get_by_label("retentionTimeInMinutes").fill("10")
        page.get_by_label("retentionSizeInMB").fill("20")
        page.get_by_role("button", name="Show the change").click()
        expect(page.locator("code.new")).to_contain_text('"retentionTimeInMinutes": 10')
        expect(page.locator("main")).to_contain_text("set-retention")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        if AXE:
            assert _violations(page) == []
        page.get_by_role("button", name="Set", exact=True).click()
        row = page.locator("tr", has=page.get_by_role("link", name="Edit retention"))
        expect(row).to_contain_text('"retentionSizeInMB": 20')
        assert httpx.get(rest, timeout=60).json()["retentionTimeInMinutes"] == 10
        page.get_by_role("link", name="Edit retention").click()
        page.get_by_role("button", name="Remove").click()
        expect(row).not_to_contain_text('"retentionSizeInMB": 20')
        assert httpx.get(rest, timeout=60).status_code == 204
        assert watch.complaints == []
