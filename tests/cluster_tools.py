"""What is asked of a cluster of processes while clients use it."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pulsar

from tests.cluster_process import ClusterProcess, is_alive
from tests.cluster_traffic import CheckedTraffic, Traffic
from tests.official_client import open_client
from tests.waiting import wait_until

SESSION_MS = 4_000
WAIT_S = 120.0


def cluster_of(folder: Path, *options: str) -> ClusterProcess:
    session = f"metadataStoreSessionTimeoutMillis={SESSION_MS}"
    return ClusterProcess(folder / "cluster", "--brokers", "3", "--broker-set", session, *options)


def get(url: str) -> bytes | None:
    """None: no answer, or a refusal."""
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            body: bytes = answer.read()
            return body
    except (OSError, urllib.error.URLError):
        return None


def owner_of(web_url: str, topic: str) -> str | None:
    """The web address of the broker that serves it, as one of them says."""
    found = get(f"{web_url}/lookup/v2/topic/{topic.replace('://', '/')}")
    return None if found is None else str(json.loads(found)["httpUrl"])


def owned_bundles(web_url: str) -> set[str] | None:
    address = web_url.removeprefix("http://")
    found = get(f"{web_url}/admin/v2/brokers/standalone/{address}/ownedNamespaces")
    return None if found is None else set(json.loads(found))


def move_bundle(bundle: str, source: str, target: str) -> None:
    """By hand, from its owner to another broker, which has it when this returns."""
    destination = target.removeprefix("http://")
    request = urllib.request.Request(
        f"{source}/admin/v2/namespaces/{bundle}/unload?destinationBroker={destination}",
        method="PUT",
    )
    with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
        assert answer.status == 204
    assert bundle in (owned_bundles(target) or ())


def bundle_of(web_url: str, topic: str) -> str:
    """As "tenant/namespace/first_last"."""
    found = get(f"{web_url}/lookup/v2/topic/{topic.replace('://', '/')}/bundle")
    assert found is not None
    tenant, namespace = topic.split("/")[2:4]
    return f"{tenant}/{namespace}/{found.decode()}"


def leader_of(web_url: str) -> str | None:
    found = get(f"{web_url}/admin/v2/brokers/leaderBroker")
    return None if found is None else str(json.loads(found)["serviceUrl"])


def known_leader(web_urls: Sequence[str]) -> str:
    """Of these brokers, as soon as the first one of them knows one."""
    found = None

    def is_known() -> bool:
        nonlocal found
        found = leader_of(web_urls[0])
        return found in web_urls

    wait_until(is_known, "one of them leads", WAIT_S)
    assert found is not None
    return found


def all_go_on(traffic: Sequence[Traffic], what: str) -> None:
    """Everybody produces, and everybody's consumer gets what is new."""
    marks = [each.acknowledged + 20 for each in traffic]

    def done() -> bool:
        failures = [each.failure for each in traffic if each.failure is not None]
        assert failures == [], failures
        return all(
            each.acknowledged > mark and each.consumed > mark - 20
            for each, mark in zip(traffic, marks, strict=True)
        )

    wait_until(done, f"messages go on after {what}", WAIT_S)


def stop_and_check(url: str, traffic: Sequence[CheckedTraffic]) -> int:
    """No acknowledged message is lost, none is out of order, for consumer and reader.

    Returns:
        Messages that are stored twice.
    """
    repetitions = 0
    for each in traffic:
        each.stop_sending()

    def drained() -> bool:
        assert [each.failure for each in traffic] == [None] * len(traffic)
        return all(each.drained for each in traffic)

    wait_until(drained, "everything is acknowledged and consumed", WAIT_S)
    for each in traffic:
        each.stop()
        assert each.failure is None
    client = open_client(url, operation_timeout_seconds=120)
    for each in traffic:
        reader = client.create_reader(each.topic, pulsar.MessageId.earliest)
        numbers = []
        while reader.has_message_available():
            numbers.append(int(reader.read_next(60_000).data()))
        repetitions += each.check(numbers)
    client.close()
    return repetitions


def kill_child(cluster: ClusterProcess, name: str, while_it_is_gone: Callable[[], None]) -> None:
    """Waits until it is back."""
    process = cluster.children()[name]
    ready = f"{name} ready at "
    before = cluster.log.count(ready)
    process.kill()
    while_it_is_gone()
    wait_until(lambda: cluster.log.count(ready) > before, f"{name} is back", WAIT_S)
    assert not is_alive(process)


def broker_at(cluster: ClusterProcess, web_url: str) -> psutil.Process:
    return cluster.children()[broker_name(cluster, web_url)]


def broker_name(cluster: ClusterProcess, web_url: str) -> str:
    return f"broker-{cluster.web_urls.index(web_url) + 1}"
