"""The console in several tabs of one browser: sessions that end or change while pages are open."""

import os
import re
from collections.abc import Callable, Iterator
from typing import Final

import httpx
import jwt
import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.chromium import CHROMIUM, chromium
from tests.standalone_process import StandaloneProcess

SECRET: Final = bytes(range(32))
TOPIC: Final = "persistent/public/default/tabs"
WAIT_MS: Final = 60_000

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: no test with a browser"),
    pytest.mark.skipif(not os.environ.get("MAGNETAR_AXE"), reason="make test-console"),
]


def token(role: str) -> str:
    return jwt.encode({"sub": role}, SECRET, "HS256")


def ask(url: str, method: str, path: str, body: object = None) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token('admin')}"}
    return httpx.request(method, f"{url}/{path}", json=body, headers=headers, timeout=60)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("tabs")
    (folder / "key").write_bytes(SECRET)
    settings = {
        "authenticationEnabled": "true",
        "authenticationProviders": "token",
        "tokenSecretKey": f"file://{folder / 'key'}",
        "authorizationEnabled": "true",
        "superUserRoles": "admin,other",
    }
    options = [each for name, text in settings.items() for each in ("--set", f"{name}={text}")]
    with StandaloneProcess(folder / "data", *options) as process:
        yield process.admin_url


@pytest.fixture
def context(url: str) -> Iterator[BrowserContext]:
    body = {"producerName": "p", "messages": [{"payload": "x"}]}
    assert ask(url, "POST", f"topics/{TOPIC}", body).is_success
    with chromium() as browser, browser.new_context() as found:
        yield found


def log_in(page: Page, url: str, role: str) -> None:
    page.goto(f"{url}/console/login?next=topics")
    page.get_by_label("Token").fill(token(role))
    page.get_by_role("button", name="Log in").click()
    expect(page.locator("h1")).to_have_text("Topics")


def log_out(page: Page) -> None:
    page.get_by_role("button", name="Log out").click()
    expect(page.locator("h1")).to_have_text("Log in")


def test_a_form_that_another_tab_logged_out(url: str, context: BrowserContext) -> None:
    one, two = context.new_page(), context.new_page()
    log_in(one, url, "admin")
    two.goto(f"{url}/console/topic/{TOPIC}/do/delete")
    two.get_by_label("Type the name").fill("tabs")
    log_out(one)
    two.get_by_role("button", name="Delete topic").click()
    expect(two.locator("body")).to_contain_text("nothing was done")
    assert ask(url, "GET", f"admin/v2/{TOPIC}/stats").is_success
    log_in(one, url, "admin")
    two.reload()  # sends it again
    expect(two).to_have_url(f"{url}/console/topics")
    assert ask(url, "GET", f"admin/v2/{TOPIC}/stats").status_code == 404


def test_a_form_of_one_role_is_not_sent_as_another(url: str, context: BrowserContext) -> None:
    one, two = context.new_page(), context.new_page()
    log_in(one, url, "admin")
    two.goto(f"{url}/console/topic/{TOPIC}/do/delete")
    two.get_by_label("Type the name").fill("tabs")
    log_out(one)
    log_in(one, url, "other")
    two.get_by_role("button", name="Delete topic").click()
    expect(two.get_by_role("alert")).to_contain_text("another's")
    expect(two.locator("body")).to_contain_text("other")  # who would do it now
    assert ask(url, "GET", f"admin/v2/{TOPIC}/stats").is_success
    two.get_by_label("Type the name").fill("tabs")
    two.get_by_role("button", name="Delete topic").click()
    expect(two).to_have_url(f"{url}/console/topics")


def test_live_pages_lead_to_the_login_and_back(url: str, context: BrowserContext) -> None:
    one, two, three = (context.new_page() for _ in range(3))
    log_in(one, url, "admin")
    two.goto(f"{url}/console/topic/{TOPIC}")
    three.goto(f"{url}/console/topic/{TOPIC}/messages")
    three.get_by_role("button", name="Follow").click()
    expect(three.locator("#follow-text")).to_contain_text("Following")
    log_out(one)
    body = {"producerName": "p", "messages": [{"payload": "a secret"}]}
    assert ask(url, "POST", f"topics/{TOPIC}", body).is_success
    for page in (two, three):
        page.bring_to_front()
        expect(page.locator("h1")).to_have_text("Log in", timeout=WAIT_MS)
        assert "a secret" not in page.content()
    one.go_back()  # the browser has kept no page
    expect(one.locator("h1")).to_have_text("Log in")
    log_in(one, url, "admin")
    for page, path in ((two, TOPIC), (three, f"{TOPIC}/messages")):
        page.reload()
        expect(page).to_have_url(f"{url}/console/topic/{path}")


def test_back_and_forward_keep_what_was_filtered(url: str, context: BrowserContext) -> None:
    page = context.new_page()
    log_in(page, url, "admin")
    field = page.locator("[data-filter]")
    field.fill("tab")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"\?q=tab"))
    page.locator("main").get_by_role("link", name="tabs").click()
    expect(page.locator("h1")).to_have_text("tabs")
    page.go_back()
    expect(field).to_have_value("tab")
    page.go_back()
    expect(field).to_have_value("")
    page.go_forward()
    expect(field).to_have_value("tab")
    expect(page.locator("#live-text")).to_have_text(re.compile("^Live"), timeout=WAIT_MS)


@pytest.mark.parametrize(("width", "height"), [(390, 844), (844, 390)])
def test_the_menu_of_a_phone_has_everything_and_goes_away(
    url: str, context: BrowserContext, width: int, height: int
) -> None:
    page = context.new_page()
    page.set_viewport_size({"width": width, "height": height})
    log_in(page, url, "admin")
    menu, more = page.locator(".bot details"), page.locator(".bot summary")
    inside = page.locator(".bot details > div")
    leaves: list[Callable[[], None]] = [
        lambda: page.keyboard.press("Escape"),
        lambda: page.mouse.click(8, 80),
        more.click,
    ]
    for leave in leaves:
        more.click()
        box = inside.bounding_box()
        assert box is not None
        assert box["y"] >= 0, "its first entries can't be reached"
        leave()
        expect(menu).not_to_have_attribute("open", "")
    more.click()
    menu.get_by_role("link", name="Brokers").click()
    expect(page.locator("h1")).to_have_text(re.compile("^Broker"))
    expect(menu).not_to_have_attribute("open", "")
    more.click()
    menu.get_by_role("button", name="Log out admin").click()
    expect(page.locator("h1")).to_have_text("Log in")


def test_a_topic_whose_name_is_a_step_of_a_path(url: str, context: BrowserContext) -> None:
    """Its links have an encoding that a browser keeps, and REST another."""
    page, path = context.new_page(), "admin/v2/non-persistent/public/default"
    for name in ("%2E", "%2E%2E"):
        assert ask(url, "PUT", f"{path}/{name}").is_success
    log_in(page, url, "admin")
    for name in (".", ".."):
        page.goto(f"{url}/console/topics")
        page.locator("tbody").get_by_role("link", name=name, exact=True).first.click()
        expect(page.locator("h1")).to_have_text(name)
        page.locator(".tabs").get_by_role("link", name="Policies").click()
        expect(page.locator("h1")).to_have_text(name)
