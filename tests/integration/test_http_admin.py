"""Admin REST against a real server: Magnetar, or Pulsar by --service-url and --admin-url."""

import secrets
import socket
from collections.abc import Iterator

import httpx
import pytest


@pytest.fixture
def tenant(http: httpx.Client) -> Iterator[str]:
    name = f"t{secrets.token_hex(4)}"
    cluster = http.get("/admin/v2/brokers/configuration/runtime").json()["clusterName"]
    created = http.put(f"/admin/v2/tenants/{name}", json={"allowedClusters": [cluster]})
    assert created.status_code == 204
    yield name
    for namespace in http.get(f"/admin/v2/namespaces/{name}").json():
        base = f"/admin/v2/persistent/{namespace}"
        for topic in http.get(f"{base}/partitioned").json():
            http.delete(f"{base}/{topic.rsplit('/', 1)[1]}/partitions?force=true")
        for topic in http.get(base).json():
            http.delete(f"{base}/{topic.rsplit('/', 1)[1]}?force=true")
        assert http.delete(f"/admin/v2/namespaces/{namespace}").status_code == 204
    assert http.delete(f"/admin/v2/tenants/{name}").status_code == 204


@pytest.fixture
def base(http: httpx.Client, tenant: str) -> str:
    """Path of a fresh namespace's persistent topics."""
    assert http.put(f"/admin/v2/namespaces/{tenant}/ns").status_code == 204
    return f"/admin/v2/persistent/{tenant}/ns"


def reason(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["reason"]


def test_a_body_without_a_length_does_not_spoil_the_request_before_it(http: httpx.Client) -> None:
    """Node's http module sends the body of a DELETE like this."""
    url = http.base_url
    request = f"DELETE /admin/v2/tenants/no-such-tenant HTTP/1.1\r\nHost: {url.host}\r\n\r\n{{}}"
    with socket.create_connection((url.host, url.port or 80), 30) as connection:
        connection.sendall(request.encode())
        answer = b"".join(iter(lambda: connection.recv(65_536), b""))
    assert answer.startswith(b"HTTP/1.1 404 "), answer
    assert b"Invalid HTTP" not in answer, "one answer for one request"


def test_tenants(http: httpx.Client, tenant: str) -> None:
    path = f"/admin/v2/tenants/{tenant}"
    assert tenant in http.get("/admin/v2/tenants").json()
    assert reason(http.put(path, json={"allowedClusters": ["standalone"]})) == (
        409,
        "Tenant already exist",
    )
    assert reason(http.put(f"{path}2")) == (412, "TenantInfo is null")
    assert reason(http.put(f"{path}2", json={"allowedClusters": ["nope"]})) == (
        412,
        "Clusters do not exist",
    )
    assert reason(http.get(f"{path}2")) == (404, "Tenant does not exist")
    assert reason(http.delete(f"{path}2")) == (404, "Tenant doesn't exist")


def test_a_tenant_with_namespaces_stays(http: httpx.Client, tenant: str, base: str) -> None:
    assert reason(http.delete(f"/admin/v2/tenants/{tenant}")) == (
        409,
        "The tenant still has active namespaces",
    )


def test_namespaces(http: httpx.Client, tenant: str, base: str) -> None:
    path = f"/admin/v2/namespaces/{tenant}/ns"
    assert http.get(f"/admin/v2/namespaces/{tenant}").json() == [f"{tenant}/ns"]
    assert reason(http.put(path)) == (409, "Namespace already exists")
    assert reason(http.get(f"{path}x")) == (404, "Namespace does not exist")
    assert reason(http.put("/admin/v2/namespaces/no-such-tenant/ns")) == (
        404,
        "Tenant does not exist",
    )
    policies = http.get(path).json()
    assert policies["bundles"]["numBundles"] == len(policies["bundles"]["boundaries"]) - 1
    assert http.get(f"{path}/bundles").json() == policies["bundles"]
    assert (
        http.put(f"{path}2", content=b"x", headers={"content-type": "text/plain"}).status_code
        == 415
    )
    assert http.put(f"{path}8", json={"bundles": {"numBundles": 8}}).status_code == 204
    assert http.get(f"{path}8/bundles").json()["numBundles"] == 8
    assert reason(http.delete(f"{path}?force=true")) == (
        405,
        "Broker doesn't allow forced deletion of namespaces",
    )


def test_a_namespace_with_topics_stays(http: httpx.Client, tenant: str, base: str) -> None:
    assert http.put(f"{base}/t").status_code == 204
    assert reason(http.delete(f"/admin/v2/namespaces/{tenant}/ns")) == (
        409,
        "Cannot delete non empty namespace",
    )


def test_topics(http: httpx.Client, base: str, tenant: str) -> None:
    full = f"persistent://{tenant}/ns/t"
    missing = (404, f"Topic {full} not found")
    for method, path in (
        ("GET", "/stats"),
        ("GET", "/internalStats"),
        ("GET", "/lastMessageId"),
        ("GET", "/subscriptions"),
        ("GET", "/partitions"),
        ("PUT", "/unload"),
        ("POST", "/terminate"),
        ("DELETE", ""),
    ):
        assert reason(http.request(method, f"{base}/t{path}")) == missing, (method, path)
    assert http.get(base).json() == []
    assert http.put(f"{base}/t").status_code == 204
    assert reason(http.put(f"{base}/t")) == (409, "This topic already exists")
    assert http.get(base).json() == [full]
    assert http.get(f"{base}/t/partitions").json() == {"partitions": 0, "deleted": False}
    assert http.get(f"/admin/v2/namespaces/{tenant}/ns/topics").json() == [full]
    assert http.put(f"{base}/t/unload").status_code == 204
    stats = http.get(f"{base}/t/stats").json()
    assert stats["publishers"] == []
    assert stats["subscriptions"] == {}
    assert isinstance(stats["msgInCounter"], int)
    assert http.get(f"{base}/t/internalStats").json()["numberOfEntries"] == 0
    assert http.delete(f"{base}/t").status_code == 204
    assert http.get(base).json() == []


def test_a_topic_that_looks_like_a_partition(http: httpx.Client, base: str) -> None:
    status, text = reason(http.put(f"{base}/x-partition-0"))
    assert status == 412
    assert "there isn't a partitioned topic x created" in text


def test_partitioned_topics(http: httpx.Client, base: str, tenant: str) -> None:
    path, full = f"{base}/p/partitions", f"persistent://{tenant}/ns/p"
    assert reason(http.put(path, json=0)) == (406, "Number of partitions should be more than 0")
    assert http.put(path, json="x").status_code == 400
    assert http.put(path, json=2).status_code == 204
    assert reason(http.put(path, json=2)) == (409, "This topic already exists")
    assert reason(http.put(f"{base}/p")) == (409, "This topic already exists")
    assert http.get(path).json() == {"partitions": 2, "deleted": False}
    assert http.get(f"{base}/partitioned").json() == [full]
    assert reason(http.get(f"{base}/p/stats")) == (404, f"Topic {full} not found")
    assert http.post(path, json=4).status_code == 204
    assert reason(http.post(path, json=3)) == (
        422,
        "Desired partitions 3 can't be less than the current partitions 4.",
    )
    assert reason(http.post(f"{base}/q/partitions", json=3)) == (
        409,
        f"Topic persistent://{tenant}/ns/q is not the partitioned topic.",
    )
    stats = http.get(f"{base}/p/partitioned-stats?perPartition=false").json()
    assert stats["metadata"]["partitions"] == 4
    assert stats["partitions"] == {}
    assert reason(http.post(f"{base}/p/terminate")) == (
        405,
        "Termination of a partitioned topic is not allowed",
    )
    status, text = reason(http.delete(f"{base}/p"))
    assert status == 409
    assert "delete-partitioned-topic" in text
    assert http.delete(path).status_code == 204
    assert http.get(base).json() == []


def test_subscriptions(http: httpx.Client, base: str, tenant: str) -> None:
    assert http.put(f"{base}/t").status_code == 204
    path = f"{base}/t/subscription"
    assert http.put(f"{path}/s").status_code == 204
    assert reason(http.put(f"{path}/s")) == (409, "Subscription already exists for topic")
    assert http.get(f"{base}/t/subscriptions").json() == ["s"]
    missing = (404, f"Subscription nope not found for topic persistent://{tenant}/ns/t")
    assert reason(http.delete(f"{path}/nope")) == missing
    assert http.post(f"{path}/s/skip_all").status_code == 204
    earliest = {"ledgerId": -1, "entryId": -1}
    assert http.post(f"{path}/s/resetcursor", json=earliest).status_code == 204
    assert http.delete(f"{path}/s").status_code == 204
    assert http.get(f"{base}/t/subscriptions").json() == []


@pytest.mark.parametrize("encoded", ["a%20b", "a+b"])
def test_encoded_names(http: httpx.Client, base: str, tenant: str, encoded: str) -> None:
    assert http.put(f"{base}/{encoded}").status_code == 204
    assert http.get(base).json() == [f"persistent://{tenant}/ns/a b"]
    assert http.delete(f"{base}/{encoded}").status_code == 204


def test_an_encoded_slash_stays_in_its_segment(http: httpx.Client, base: str) -> None:
    assert reason(http.put(f"{base}/a%2Fb")) == (412, "Topic name is not valid")


def test_lookup(http: httpx.Client, service_url: str, tenant: str, base: str) -> None:
    path = f"/lookup/v2/topic/persistent/{tenant}/ns/t"
    answer = http.get(path).json()
    assert answer["brokerUrl"] == answer["nativeUrl"] == service_url
    assert answer["brokerUrlSsl"] == ""
    lower, upper = http.get(f"{path}/bundle").text.split("_")
    assert int(lower, 16) < int(upper, 16)
    assert http.get(f"/lookup/v2/topic/persistent/{tenant}/nope/t").status_code == 404


def test_brokers(http: httpx.Client, admin_url: str) -> None:
    here = admin_url.removeprefix("http://")
    assert http.get("/admin/v2/brokers").json() == [here]
    assert http.get("/admin/v2/brokers/leaderBroker").json()["brokerId"] == here
    assert http.get("/admin/v2/brokers/health").text == "ok"
    assert http.get("/admin/v2/brokers/ready").text == "ok"
    assert http.get("/admin/v2/brokers/configuration/runtime").json()["clusterName"]


def test_metrics_name_the_topic(http: httpx.Client, base: str, tenant: str) -> None:
    assert http.put(f"{base}/t").status_code == 204
    page = http.get("/metrics", follow_redirects=True)
    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = page.text.splitlines()
    label = f'topic="persistent://{tenant}/ns/t"'
    assert any(line.startswith("pulsar_rate_in{") and label in line for line in lines)
    assert any(line.startswith("pulsar_topics_count{") for line in lines)


def test_a_wrong_method_is_told_the_right_ones(http: httpx.Client, tenant: str) -> None:
    answer = http.patch(f"/admin/v2/tenants/{tenant}")
    assert reason(answer) == (405, "Method Not Allowed")
    assert answer.headers["allow"] == "GET, PUT, POST, DELETE"
    assert http.options("/admin/v2/tenants").headers["allow"] == "GET"
    assert "allow" not in http.patch("/admin/v2/nothing").headers
