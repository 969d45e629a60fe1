"""A real browser and pages of other sites: what they make it send is refused, own pages work.

The attacks run twice: against a broker as it starts by default, and against one whose operator has
opened it to every page, where each of them must succeed: so they are attacks.
"""

import os
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.standalone_process import StandaloneProcess
from tests.waiting import wait_until

CHROMIUM = os.environ.get("MAGNETAR_CHROMIUM") or shutil.which("chromium")
OPTIONS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--host-resolver-rules=MAP *.example 127.0.0.1",
    # Newer Chromiums ask their user before a page may reach this machine; other browsers don't.
    "--disable-features=LocalNetworkAccessChecks",
)
OPEN = ("--set", "webServiceAllowedHosts=*", "--set", "corsAllowedOrigins=*")
TOPIC = "persistent/public/default/orders"
SUBSCRIPTION = f"/admin/v2/{TOPIC}/subscription/billing"
SETTING = "/admin/v2/brokers/configuration/allowAutoTopicCreation/false"
SHUTDOWN = "/admin/v2/brokers/shutdown?maxConcurrentUnloadPerSec=0"

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium: no test with a browser")

_SOCKET = """url => new Promise(done => {
    const socket = new WebSocket(url);
    socket.onopen = () => { socket.close(); done("open"); };
    socket.onerror = () => done("refused");
})"""
_FORM = """url => {
    const form = document.createElement("form");
    form.method = "post"; form.action = url; form.target = "unseen";
    const frame = document.createElement("iframe");
    frame.name = "unseen";
    document.body.append(frame, form);
    form.submit();
}"""
_FETCH = """([url, options]) => fetch(url, options).then(
    answer => answer.text().then(text => [answer.status, text]), () => [0, ""])"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert CHROMIUM is not None
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield found
        found.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with browser.new_page() as found:
        yield found


class _EmptyPage(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>evil</title><body></body>")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def evil_url() -> Iterator[str]:
    """A page of another site."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _EmptyPage) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://evil.example:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module", params=[(), OPEN], ids=["default", "opened to every page"])
def process(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StandaloneProcess]:
    data = tmp_path_factory.mktemp("browsers") / "data"
    with StandaloneProcess(data, *request.param) as found:
        yield found


@pytest.fixture
def broker(process: StandaloneProcess) -> StandaloneProcess:
    """With two subscriptions of a topic, two messages behind each."""
    with httpx.Client(base_url=process.admin_url, timeout=30) as http:
        http.delete(f"/admin/v2/{TOPIC}?force=true")
        for name in ("billing", "other"):
            http.put(SUBSCRIPTION.replace("billing", name)).raise_for_status()
        body = {"messages": [{"payload": "a"}, {"payload": "b"}]}
        http.post(f"/topics/{TOPIC}", json=body).raise_for_status()
    return process


def backlog(broker: StandaloneProcess) -> int:
    stats = httpx.get(f"{broker.admin_url}/admin/v2/{TOPIC}/stats", timeout=30).json()
    return int(stats["subscriptions"]["billing"]["msgBacklog"])


def settings_changed(broker: StandaloneProcess) -> dict[str, str]:
    url = f"{broker.admin_url}/admin/v2/brokers/configuration/values"
    found: dict[str, str] = httpx.get(url, timeout=30).json()
    return found


def submit(page: Page, evil_url: str, url: str) -> int:
    """The status that an empty form on a page of another site gets."""
    page.goto(evil_url)
    with page.expect_response(url) as answer:
        page.evaluate(_FORM, url)
    return answer.value.status


def opens(page: Page, url: str) -> str:
    found: str = page.evaluate(_SOCKET, url)
    return found


def fetch(page: Page, url: str, **options: str) -> tuple[int, str]:
    status, text = page.evaluate(_FETCH, [url, options])
    return status, text


def test_a_name_that_is_pointed_here_while_its_page_is_open(
    broker: StandaloneProcess, page: Page
) -> None:
    is_open = bool(broker._options)
    base = f"http://rebound.example:{broker.web_port}"
    # Served by the attacker's machine: from then on the name is 127.0.0.1 (OPTIONS).
    page.route(
        f"{base}/", lambda route: route.fulfill(body="<body></body>", content_type="text/html")
    )
    page.goto(f"{base}/")
    assert page.evaluate("location.origin") == base
    status, text = fetch(page, f"{base}/admin/v2/clusters")
    assert (status, "standalone" in text) == ((200, True) if is_open else (421, False))
    status, _ = fetch(page, f"{base}{SUBSCRIPTION}/skip_all", method="POST")
    assert (status, backlog(broker)) == ((204, 0) if is_open else (421, 2))
    socket = f"{base.replace('http', 'ws', 1)}/ws/v2/producer/{TOPIC}"
    assert opens(page, socket) == ("open" if is_open else "refused")


def test_own_pages_and_links_to_them_work(
    broker: StandaloneProcess, page: Page, evil_url: str
) -> None:
    if broker._options:
        pytest.skip("is about the default")
    base = f"http://localhost:{broker.web_port}"
    page.goto(evil_url)
    with page.expect_navigation():
        page.evaluate("url => { location = url; }", f"{base}/docs")
    page.wait_for_selector(".opblock-tag", timeout=120_000)  # Swagger UI has read the document
    assert fetch(page, f"{base}{SUBSCRIPTION}/skip_all", method="POST") == (204, "")
    wait_until(lambda: backlog(broker) == 0, "the page has skipped the backlog")
    assert opens(page, f"ws://localhost:{broker.web_port}/ws/v2/producer/{TOPIC}") == "open"
    assert fetch(page, f"/admin/v2/{TOPIC}/subscription/other", method="DELETE")[0] == 204


def test_pages_of_other_sites(broker: StandaloneProcess, page: Page, evil_url: str) -> None:
    is_open = bool(broker._options)
    # The very address, and what a user may type for it
    for base in (broker.admin_url, f"http://localhost:{broker.web_port}"):
        page.goto(evil_url)
        socket = f"{base.replace('http', 'ws', 1)}/ws/v2/producer/{TOPIC}"
        assert opens(page, socket) == ("open" if is_open else "refused")
        # An answer that no page may read, of a request that takes messages
        taking = f"{base}/topics/{TOPIC}/subscription/other/messages?maxMessages=1"
        with page.expect_response(taking) as answer:
            fetch(page, taking, mode="no-cors")
        assert answer.value.status == (200 if is_open else 403)
    status = submit(page, evil_url, f"{broker.admin_url}{SUBSCRIPTION}/skip_all")
    assert (status, backlog(broker)) == ((204, 0) if is_open else (403, 2))
    status = submit(page, evil_url, broker.admin_url + SETTING)
    assert (status == 403) == (settings_changed(broker) == {}) == (not is_open)
    if not is_open:
        assert submit(page, evil_url, broker.admin_url + SHUTDOWN) == 403
        assert httpx.get(f"{broker.admin_url}/readyz", timeout=30).status_code == 200
        return
    page.goto(evil_url)  # the last of all tests of this broker
    page.evaluate(_FORM, broker.admin_url + SHUTDOWN)
    assert broker.wait_for_end() == 0
