"""The console of one of two brokers, over TLS: the other one's topics, silence and death."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import jwt
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.certificates import Authority
from tests.chromium import CHROMIUM, Watch, chromium
from tests.cluster_process import ClusterProcess
from tests.waiting import wait_until

SECRET: Final = bytes(range(32))
SPACE: Final = "public/bundles"
COUNT: Final = 12
WAIT_MS: Final = 90_000

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: no test with a browser"),
    pytest.mark.skipif(not os.environ.get("MAGNETAR_AXE"), reason="make test-console"),
]


def token(role: str) -> str:
    return jwt.encode({"sub": role}, SECRET, "HS256")


@dataclass(frozen=True)
class Cluster:
    process: ClusterProcess
    authority: Authority
    url: str
    """Of the console of the first broker, over TLS."""
    brokers: list[str]
    """Ids: ``host:port`` of the plain web address."""
    owners: dict[str, str]
    """Broker by topic."""


def ask(url: str, method: str, path: str, body: object = None) -> httpx.Response:
    """With credentials wherever the brokers send it on to."""
    headers = {"Authorization": f"Bearer {token('admin')}"}
    at = f"{url}/admin/v2/{path}"
    for _ in range(5):
        answer = httpx.request(method, at, json=body, headers=headers, timeout=60)
        if answer.status_code != 307:
            break
        at = answer.headers["location"]
    return answer.raise_for_status()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    authority = Authority(folder)
    with ClusterProcess(folder / "data", *_options(folder, authority)) as process:
        first, _ = process.web_urls
        report = ask(first, "GET", "broker-stats/load-report").json()
        ask(first, "PUT", f"namespaces/{SPACE}", {"bundles": {"numBundles": 16}})
        for number in range(COUNT):
            path = f"persistent/{SPACE}/t{number}/subscription/s"
            ask(process.web_urls[number % 2], "PUT", path)
        index = ask(first, "GET", "topics-index").json()
        owners = {row["topic"].rpartition("/")[2]: row["broker"] for row in index["topics"]}
        brokers = [url.removeprefix("http://") for url in process.web_urls]
        url = f"{report['webServiceUrlTls']}/console/"
        yield Cluster(process, authority, url, brokers, owners)


def _options(folder: Path, authority: Authority) -> list[str]:
    server = authority.sign("broker", file="broker")
    key, own = folder / "secret.key", folder / "broker.token"
    key.write_bytes(SECRET)
    own.write_text(token("broker"))
    own.chmod(0o600)
    settings = {
        "brokerPeerFailureDetectionEnabled": "false",  # else a silent broker is soon none
        "metadataStoreSessionTimeoutMillis": 30_000,
        # A test takes the only subscription of a topic that a later one looks at.
        "brokerDeleteInactiveTopicsEnabled": "false",
        "webServicePortTls": 0,
        "brokerServicePortTls": 0,
        "tlsCertificateFilePath": server.certificate,
        "tlsKeyFilePath": server.key,
        "tlsTrustCertsFilePath": authority.certificate,
        "authenticationEnabled": "true",
        "authenticationProviders": "token,tls",
        "tokenSecretKey": f"file://{key}",
        "authorizationEnabled": "true",
        "superUserRoles": "admin,broker",
        "proxyRoles": "broker",
        "brokerClientTlsEnabled": "true",
        "brokerClientTrustCertsFilePath": authority.certificate,
        "brokerClientAuthenticationPlugin": "token",
        "brokerClientAuthenticationParameters": f"file://{own}",
    }
    options = ["--brokers", "2", "--bookies", "1"]
    for name, text in settings.items():
        options += ["--broker-set", f"{name}={text}"]
    return options


@pytest.fixture
def context(browser: Browser, cluster: Cluster) -> Iterator[BrowserContext]:
    """That has logged in by a token."""
    with browser.new_context(ignore_https_errors=True) as found:
        page = found.new_page()
        page.goto(f"{cluster.url}topics")
        page.get_by_label("Token").fill(token("admin"))
        page.get_by_role("button", name="Log in").click()
        expect(page.locator("h1")).to_have_text("Topics")
        (cookie,) = found.cookies()
        assert cookie["name"] == "__Host-magnetar"
        assert cookie["secure"]
        assert cookie["httpOnly"]
        page.close()
        yield found


def test_topics_of_both_brokers_have_pages(cluster: Cluster, context: BrowserContext) -> None:
    assert set(cluster.owners.values()) == set(cluster.brokers), "one has all bundles"
    page = context.new_page()
    watch = Watch(page, cluster.url.removesuffix("console/"))
    for name in cluster.owners:
        for tab in ("", "/storage", "/policies"):
            page.goto(f"{cluster.url}topic/persistent/{SPACE}/{name}{tab}")
            expect(page.locator("h1")).to_have_text(name)
            assert page.locator(".fail").count() == 0, name
    other = next(name for name, broker in cluster.owners.items() if broker == cluster.brokers[1])
    page.goto(f"{cluster.url}topic/persistent/{SPACE}/{other}/do/unsubscribe?subscription=s")
    page.get_by_label("Type the name").fill("s")
    page.get_by_role("button", name="Delete subscription").click()
    expect(page.locator("main")).to_contain_text("No subscription")
    assert watch.complaints == []


def test_a_login_is_good_at_both_brokers_until_it_is_ended_at_one(
    cluster: Cluster, context: BrowserContext
) -> None:
    report = ask(cluster.process.web_urls[1], "GET", "broker-stats/load-report").json()
    second = context.new_page()
    second.goto(f"{report['webServiceUrlTls']}/console/brokers")
    expect(second.locator("h1")).to_have_text("Brokers")
    expect(second.locator(".who")).to_contain_text("admin")
    copies = context.cookies()
    second.get_by_role("button", name="Log out").click()
    expect(second.locator("h1")).to_have_text("Log in")
    assert context.cookies() == []
    context.add_cookies(copies)  # type: ignore[arg-type] # as a thief would
    first = context.new_page()

    def is_refused() -> bool:
        first.goto(f"{cluster.url}brokers")
        return first.locator("h1").inner_text() == "Log in"

    wait_until(is_refused, "the copy is good at the other broker")


def test_a_client_certificate_is_a_login(browser: Browser, cluster: Cluster) -> None:
    pair = cluster.authority.sign("admin", file="admin")
    origin = cluster.url.removesuffix("/console/")
    shown: Any = {"origin": origin, "certPath": str(pair.certificate), "keyPath": str(pair.key)}
    with browser.new_context(ignore_https_errors=True, client_certificates=[shown]) as context:
        page = context.new_page()
        page.goto(f"{cluster.url}settings")
        expect(page.locator("h1")).to_have_text("Settings")
        expect(page.locator(".who")).to_contain_text("admin")
        assert context.cookies() == []
    with browser.new_context(ignore_https_errors=True) as context:
        page = context.new_page()
        page.goto(f"{cluster.url}settings")
        expect(page.locator("h1")).to_have_text("Log in")


def test_a_broker_that_is_silent_and_one_that_dies(
    cluster: Cluster, context: BrowserContext
) -> None:
    page, other = context.new_page(), cluster.brokers[1]
    page.goto(f"{cluster.url}topics")
    rows, then = page.locator("tbody tr"), page.locator("tbody tr.then")
    count = rows.count()
    assert count == COUNT
    processes = cluster.process.children()
    process = processes["broker-2"]
    process.suspend()
    try:
        expect(page.locator("main")).to_contain_text(f"{other} has not answered", timeout=WAIT_MS)
        expect(then.first).to_have_attribute("title", re.compile("does not answer"))
        assert {each.get_attribute("data-broker") for each in then.all()} == {other}
        assert rows.count() == count
        here = next(n for n, broker in cluster.owners.items() if broker != other)
        expect(page.locator("tr", has_text=here).first).not_to_have_class("then")
        shot = os.environ.get("MAGNETAR_PICTURES")
        if shot:
            page.screenshot(path=f"{shot}/silent-broker.png")
    finally:
        process.resume()
    expect(then).to_have_count(0, timeout=WAIT_MS)
    process.kill()
    lost = next(name for name, broker in cluster.owners.items() if broker == other)
    _is_whole(page, cluster, lost)


def _is_whole(page: Page, cluster: Cluster, topic: str) -> None:
    """The other broker has the topics of the dead one, or it has been started anew."""
    page.goto(f"{cluster.url}topic/persistent/{SPACE}/{topic}")
    expect(page.locator(".fig")).to_be_visible(timeout=WAIT_MS)
    page.goto(cluster.url)
    expect(page.locator("main")).to_contain_text("leader ", timeout=WAIT_MS)
    expect(page.locator(".fail")).to_have_count(0, timeout=WAIT_MS)
