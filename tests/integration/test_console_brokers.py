"""The console of a broker that isn't alone: figures of the others, and of one that is silent."""

import re
from collections.abc import Iterator
from html import unescape

import httpx
import pytest

from tests.child_process import suspend
from tests.cluster_process import ClusterProcess
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    process = ClusterProcess(
        tmp_path_factory.mktemp("console") / "data",
        *("--brokers", "2", "--bookies", "1"),
        *("--broker-set", "metadataStoreSessionTimeoutMillis=60000"),
        *("--broker-set", "brokerPeerFailureDetectionEnabled=false"),
    )
    with process:
        yield process


def text_of(url: str) -> str:
    answer = httpx.get(url, timeout=60)
    assert answer.status_code == 200, answer.text
    return unescape(answer.text)


def test_other_brokers_are_asked_and_one_that_is_silent_keeps_its_figures(
    cluster: ClusterProcess,
) -> None:
    asked, other = (url.removeprefix("http://") for url in cluster.web_urls)
    pages = f"http://{asked}/console/brokers"
    wait_until(lambda: f"<b>{other}</b>" in text_of(pages), lambda: text_of(pages))
    report = httpx.get(f"http://{other}/admin/v2/broker-stats/load-report", timeout=60).json()
    page = text_of(pages)
    assert "silent" not in re.sub("<script.*?</script>", "", page)
    assert page.count(report["brokerVersionString"]) >= 2
    owned = httpx.get(f"http://{other}/admin/v2/brokers/c/{other}/ownedNamespaces", timeout=60)
    detail = text_of(f"{pages}/{other}")
    for bundle in owned.json():
        assert bundle in detail
    changed = text_of(f"{pages}/{other}/settings")
    assert "metadataStoreSessionTimeoutMillis" in changed
    assert "60000" in changed
    assert "read it back: ok" in text_of(f"{pages}/{other}/health")
    assert "0 shown of" in text_of(f"{pages}/{other}/connections")

    suspend(cluster.children()["broker-2"].pid)
    page = text_of(pages)
    row = re.findall(rf"<tr[^>]*>(?:(?!</tr>).)*{re.escape(other)}.*?</tr>", page, re.DOTALL)[0]
    assert 'class="then"' in row
    assert "silent since" in row
    assert report["brokerVersionString"] in row  # what it told before
    detail = text_of(f"{pages}/{other}")
    assert "Silent since" in detail
    assert "it has not answered in 0.7 s" in detail
    since = re.findall(r"silent since <time datetime=\"([^\"]+)\"", page)
    assert re.findall(r"Silent since <time datetime=\"([^\"]+)\"", detail) == since


def test_a_name_that_no_broker_has_is_not_asked(cluster: ClusterProcess) -> None:
    answer = httpx.get(f"{cluster.web_urls[0]}/console/brokers/127.0.0.1:1", timeout=60)
    assert answer.status_code == 404
    assert "There is no broker 127.0.0.1:1 now." in answer.text
