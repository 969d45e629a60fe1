"""Two brokers with tokens: each asks the other as itself, in the name of its caller."""

import secrets
from collections.abc import Iterator

import httpx
import jwt
import pytest

from magnetar.broker.auth.client_auth import ClientAuth
from magnetar.pipeline.admin import Admin, ClusterAccess
from magnetar.pipeline.errors import PipelineError
from tests import ledger_store
from tests.cluster_process import ClusterProcess
from tests.waiting import wait_until

SECRET = bytes(range(40, 72))
PARTITIONS = 8
ADMIN = "/admin/v2"
WAIT_S = 90


def token(role: str) -> str:
    return jwt.encode({"sub": role}, SECRET, "HS256")


class Cluster:
    def __init__(self, process: ClusterProcess) -> None:
        self.process = process
        self.names = [url.removeprefix("http://") for url in process.web_urls]

    def ask(self, index: int, role: str, method: str, path: str, body: object = None) -> str:
        """The text of a good answer of the broker, or its status and reason."""
        # Credentials are shown again where one is sent to, as Pulsar's clients do.
        for _ in range(5):
            answer = httpx.request(
                method,
                self.process.web_urls[index] + path,
                json=body,
                headers={"Authorization": f"Bearer {token(role)}"},
                timeout=WAIT_S,
            )
            if answer.status_code != 307:
                break
            url = httpx.URL(answer.headers["location"])
            index, path = self.names.index(url.netloc.decode()), url.raw_path.decode()
        good = answer.status_code < 300
        return answer.text if good else f"{answer.status_code} {answer.json()['reason']}"

    def owners(self, topic: str) -> set[str]:
        found = set()
        for number in range(PARTITIONS):
            path = f"/lookup/v2/topic/persistent/{topic}-partition-{number}"
            found.add(httpx.Response(200, text=self.ask(0, "admin", "GET", path)).json()["httpUrl"])
        return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    key, own = folder / "secret.key", folder / "broker.token"
    key.write_bytes(SECRET)
    own.write_text(token("broker"))
    own.chmod(0o600)
    settings = {
        "authenticationEnabled": "true",
        "authenticationProviders": "token",
        "tokenSecretKey": f"file://{key}",
        "authorizationEnabled": "true",
        "superUserRoles": "admin,broker",
        "proxyRoles": "broker",
        "brokerClientAuthenticationPlugin": "token",
        "brokerClientAuthenticationParameters": f"file://{own}",
        "logLevel": "DEBUG",  # tells who watches whom
    }
    options = [
        each for name, text in settings.items() for each in ("--broker-set", f"{name}={text}")
    ]
    process = ClusterProcess(folder / "data", "--brokers", "2", "--bookies", "1", *options)
    with process:
        yield Cluster(process)


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """``tenant/ns/name`` of a partitioned topic that both brokers serve a part of."""
    tenant = f"t-{secrets.token_hex(4)}"
    info = {"adminRoles": ["ten"], "allowedClusters": ["standalone"]}
    assert cluster.ask(0, "admin", "PUT", f"{ADMIN}/tenants/{tenant}", info) == ""
    namespace = f"{ADMIN}/namespaces/{tenant}/ns"
    assert cluster.ask(1, "admin", "PUT", namespace) == ""
    for role, actions in (("prod", ["produce"]), ("cons", ["consume"])):
        path = f"{namespace}/permissions/{role}"
        assert cluster.ask(0, "ten", "POST", path, actions) == ""
    for number in range(20):
        topic = f"{tenant}/ns/p{number}"
        path = f"{ADMIN}/persistent/{topic}"
        assert cluster.ask(number % 2, "ten", "PUT", f"{path}/partitions", PARTITIONS) == ""
        if len(cluster.owners(topic)) == 2:
            assert cluster.ask(0, "ten", "PUT", f"{path}/subscription/s") == ""
            return topic
    raise AssertionError("one broker has all bundles")


@pytest.mark.slow
def test_the_other_broker_is_asked_in_the_name_of_the_caller(cluster: Cluster, topic: str) -> None:
    path = f"{ADMIN}/persistent/{topic}"
    for index in range(2):
        messages = {"messages": [{"payload": "x", "key": str(n)} for n in range(20)]}
        answer = cluster.ask(index, "prod", "POST", f"/topics/persistent/{topic}", messages)
        results = httpx.Response(200, text=answer).json()["messagePublishResults"]
        assert [result["errorCode"] for result in results] == [0] * 20, answer
        stats = httpx.Response(
            200, text=cluster.ask(index, "cons", "GET", f"{path}/partitioned-stats")
        ).json()
        assert stats["subscriptions"]["s"]["msgBacklog"] == 20
        assert cluster.ask(index, "cons", "POST", f"{path}/subscription/s/skip_all") == ""
    logs = sorted((cluster.process.data / "logs").glob("broker-*.log"))
    said = "".join(log.read_text() for log in logs)
    asked = [
        line
        for line in said.splitlines()
        if "magnetar.broker.audit" in line and "role=broker " in line
    ]
    assert [line for line in asked if "skip_all" in line and "cons" in line], asked


@pytest.mark.slow
def test_changes_of_all_brokers_are_in_one_list(cluster: Cluster) -> None:
    tenant = f"t-{secrets.token_hex(4)}"
    for index, name in enumerate(("a", "b")):
        path = f"{ADMIN}/tenants/{tenant}{name}"
        assert cluster.ask(index, "admin", "PUT", path, {"adminRoles": []}).startswith("4")
    for index in range(2):
        text = cluster.ask(index, "admin", "GET", f"{ADMIN}/audit?path={tenant}")
        answer = httpx.Response(200, text=text).json()
        found = [(each["broker"], each["path"][-1], each["role"]) for each in answer["changes"]]
        assert found == [(cluster.names[1], "b", "admin"), (cluster.names[0], "a", "admin")]
        assert sorted(answer["since"]) == sorted(cluster.names)
        assert answer["failed"] == {}
        assert cluster.ask(index, "ten", "GET", f"{ADMIN}/audit").startswith("401")


@pytest.mark.slow
def test_each_broker_knows_the_bookies(cluster: Cluster, topic: str) -> None:
    messages = {"messages": [{"payload": "x"}]}
    sent = cluster.ask(0, "prod", "POST", f"/topics/persistent/{topic}", messages)
    assert '"errorCode":0' in sent
    for index in range(2):
        text = cluster.ask(index, "admin", "GET", f"{ADMIN}/bookies/state")
        answer = httpx.Response(200, text=text).json()
        [bookie] = answer["bookies"]
        assert (bookie["state"], bookie["error"]) == ("writable", None)
        assert 0 < bookie["freeBytes"] < bookie["totalBytes"]
        if not ledger_store.APACHE:  # its bookies tell space only
            assert 0 < bookie["addLatencyMs"]["p50"] <= bookie["addLatencyMs"]["p99"]
        assert answer["repair"]["ledgers"] == 0


@pytest.mark.slow
def test_the_pipeline_is_sent_on_with_its_token(cluster: Cluster, topic: str) -> None:
    names = [f"persistent://{topic}-partition-{number}" for number in range(PARTITIONS)]
    for url in cluster.process.web_urls:
        access = ClusterAccess((url,), ClientAuth("token", f"token:{token('cons')}"))
        with Admin(access) as admin:
            assert [admin.segments(name).topic for name in names] == names
        with Admin(ClusterAccess((url,))) as admin, pytest.raises(PipelineError, match="HTTP 401"):
            admin.segments(names[0])


@pytest.mark.slow
def test_who_may_not_is_refused_by_every_broker(cluster: Cluster, topic: str) -> None:
    path = f"{ADMIN}/persistent/{topic}"
    for index in range(2):
        for role, method, tail in (
            ("cons", "POST", "/terminate/partitions"),
            ("prod", "POST", "/subscription/s/skip_all"),
            ("nobody", "GET", "/partitioned-stats"),
            ("nobody", "DELETE", "/partitions"),
        ):
            refused = cluster.ask(index, role, method, path + tail)
            assert refused.startswith(("401 Unauthorized", "403 Unauthorized")), refused
            assert role in refused
    messages = {"messages": [{"payload": "still open", "key": str(n)} for n in range(20)]}
    answer = cluster.ask(0, "prod", "POST", f"/topics/persistent/{topic}", messages)
    assert '"errorCode":0' in answer
    assert '"errorCode":2' not in answer


@pytest.mark.slow
def test_brokers_that_speak_for_others_watch_each_other(cluster: Cluster) -> None:
    dying, name = cluster.process.children()["broker-2"], cluster.names[1]
    log = cluster.process.data / "logs" / "broker-1.log"
    watched = f"broker {name} is watched"
    wait_until(lambda: watched in log.read_text(), watched, WAIT_S)
    dying.kill()
    said = f"broker {name} is dead"
    wait_until(lambda: said in log.read_text(), said, WAIT_S)
    ready = "broker-2 ready at "
    wait_until(lambda: cluster.process.log.count(ready) == 2, "it is back", WAIT_S)


@pytest.mark.slow
def test_a_broker_that_is_not_let_in_says_what_to_set(cluster: Cluster, topic: str) -> None:
    """Last in this module: the brokers' own token is spoilt."""
    path = f"{ADMIN}/persistent/{topic}/partitioned-stats"
    own = cluster.process.data.parent / "broker.token"
    own.write_text(jwt.encode({"sub": "broker"}, b"another key of 32 bytes, no good", "HS256"))
    said = []

    def is_refused() -> bool:
        said.append(cluster.ask(0, "ten", "GET", path))
        return said[-1].startswith("503")

    wait_until(is_refused, "the new token is shown", WAIT_S)
    assert "brokerClientAuthenticationParameters" in said[-1]
