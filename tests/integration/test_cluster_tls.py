"""Two brokers that talk to each other over TLS, with tokens; and clients that do so too."""

import base64
import json
import re
import secrets
import ssl
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import httpx
import jwt
import psutil
import pulsar
import pytest

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from tests import raw_transactions
from tests.certificates import Authority
from tests.cluster_process import ClusterProcess
from tests.official_client import open_client
from tests.raw_client import RawClient
from tests.waiting import wait_until
from tests.web_socket import WebSocket, open_web_socket

SECRET = bytes(range(40, 72))
PARTITIONS = 8
MESSAGES = 40
ADMIN = "/admin/v2"
TOPICS = f"{ADMIN}/persistent/public/default"
WAIT_S = 90


def token(role: str) -> str:
    return jwt.encode({"sub": role}, SECRET, "HS256")


class Cluster:
    def __init__(self, process: ClusterProcess, authority: Authority) -> None:
        self.process, self.authority = process, authority
        self.context = ssl.create_default_context(cafile=authority.certificate)
        self.headers = {"Authorization": f"Bearer {token('admin')}"}
        plain = [self.report(url) for url in process.web_urls]
        self.names = [url.removeprefix("http://") for url in process.web_urls]
        self.web_urls = [report["webServiceUrlTls"] for report in plain]
        self.service_urls = [report["pulsarServiceUrlTls"] for report in plain]

    def report(self, url: str) -> dict[str, Any]:
        path = f"{ADMIN}/broker-stats/load-report"
        answer = httpx.get(url + path, headers=self.headers, timeout=WAIT_S)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def ask(self, index: int, method: str, path: str, body: object = None) -> httpx.Response:
        """Over TLS; credentials are shown again where one is sent to, as clients do."""
        url = self.web_urls[index] + path
        for _ in range(5):
            answer = httpx.request(
                method, url, json=body, headers=self.headers, timeout=WAIT_S, verify=self.context
            )
            if answer.status_code != 307:
                break
            url = answer.headers["location"]
            assert url.startswith(tuple(self.web_urls)), "nobody is sent where TLS isn't"
        assert answer.status_code in (200, 204), f"{method} {path}: {answer.text}"
        return answer

    def owner(self, topic: str) -> str:
        path = f"/lookup/v2/topic/{topic.replace('://', '/')}"
        return str(self.ask(0, "GET", path).json()["brokerUrlTls"])

    def owners(self, topic: str) -> list[str]:
        name = f"persistent://public/default/{topic}-partition-"
        return [self.owner(f"{name}{n}") for n in range(PARTITIONS)]

    def coordinator(self, index: int) -> int:
        """One that this broker has."""
        numbers = range(raw_transactions.COORDINATORS)
        owners = [self.owner(raw_transactions.assigned(n)) for n in numbers]
        return owners.index(self.service_urls[index])

    def socket(self, index: int, path: str) -> AbstractContextManager[WebSocket]:
        return open_web_socket(
            f"{self.web_urls[index].replace('https', 'wss')}/ws/v2/{path}",
            ssl=self.context,
            additional_headers=self.headers,
            open_timeout=WAIT_S,
            compression=None,
        )

    def raw(self, index: int, role: str = "admin") -> RawClient:
        """To the port without TLS."""
        client = RawClient(self.process.service_urls[index], connect=False)
        client.connect(auth_method_name="token", auth_data=token(role).encode())
        return client

    def client(self, index: int) -> pulsar.Client:
        return open_client(
            self.service_urls[index],
            authentication=pulsar.AuthenticationToken(token("admin")),
            tls_trust_certs_file_path=str(self.authority.certificate),
            tls_validate_hostname=True,
            operation_timeout_seconds=WAIT_S,
        )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    authority = Authority(folder)
    server = authority.sign("broker")
    key, own = folder / "secret.key", folder / "broker.token"
    key.write_bytes(SECRET)
    _write(own, token("broker"))
    settings = {
        "brokerServicePortTls": 0,
        "webServicePortTls": 0,
        "tlsCertificateFilePath": server.certificate,
        "tlsKeyFilePath": server.key,
        "authenticationEnabled": "true",
        "authenticationProviders": "token",
        "tokenSecretKey": f"file://{key}",
        "authorizationEnabled": "true",
        "superUserRoles": "admin,broker",
        "proxyRoles": "broker",
        "transactionCoordinatorEnabled": "true",
        "brokerClientTlsEnabled": "true",
        "brokerClientTrustCertsFilePath": authority.certificate,
        "brokerClientAuthenticationPlugin": "token",
        "brokerClientAuthenticationParameters": f"file://{own}",
    }
    options = [
        each for name, text in settings.items() for each in ("--broker-set", f"{name}={text}")
    ]
    process = ClusterProcess(folder / "data", "--brokers", "2", "--bookies", "1", *options)
    with process:
        yield Cluster(process, authority)


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o600)


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """A partitioned topic that both brokers serve a part of."""
    for number in range(20):
        topic = f"t-{secrets.token_hex(4)}"
        path = f"{TOPICS}/{topic}"
        cluster.ask(number % 2, "PUT", f"{path}/partitions", PARTITIONS)
        if len(set(cluster.owners(topic))) == 2:
            cluster.ask(number % 2, "PUT", f"{path}/subscription/s")
            return topic
    raise AssertionError("one broker has all bundles")


@pytest.mark.slow
def test_http_reaches_every_broker_over_tls(cluster: Cluster, topic: str) -> None:
    for index in range(2):
        messages = {"messages": [{"payload": "x", "key": str(n)} for n in range(MESSAGES)]}
        answer = cluster.ask(index, "POST", f"/topics/persistent/public/default/{topic}", messages)
        results = answer.json()["messagePublishResults"]
        assert [result["errorCode"] for result in results] == [0] * MESSAGES
        stats = cluster.ask(index, "GET", f"{TOPICS}/{topic}/partitioned-stats").json()
        assert stats["subscriptions"]["s"]["msgBacklog"] == MESSAGES
        cluster.ask(index, "POST", f"{TOPICS}/{topic}/subscription/s/skip_all")
        for number in range(PARTITIONS):  # 307 to the other one's HTTPS, half of them
            cluster.ask(index, "GET", f"{TOPICS}/{topic}-partition-{number}/stats")


@pytest.mark.slow
@pytest.mark.parametrize("index", [0, 1])
def test_sockets_of_one_broker_reach_topics_of_the_other_over_tls(
    cluster: Cluster, topic: str, index: int
) -> None:
    other = cluster.service_urls[1 - index]
    number = cluster.owners(topic).index(other)
    name = f"persistent/public/default/{topic}-partition-{number}"
    process = cluster.process.children()[f"broker-{index + 1}"]
    port = int(other.rpartition(":")[2])

    def links() -> set[int]:
        return {
            each.laddr[1]
            for each in process.net_connections("tcp")
            if each.status == psutil.CONN_ESTABLISHED and each.raddr and each.raddr[1] == port
        }

    before = links()  # brokers watch each other
    with (
        cluster.socket(index, f"producer/{name}") as producer,
        cluster.socket(index, f"consumer/{name}/s") as consumer,
    ):
        # Or more: brokers dial each other for ends of transactions, too, at any time.
        wait_until(
            lambda: len(links() - before) >= 2, "one of each socket, to the port of TLS", WAIT_S
        )
        for number in range(MESSAGES):
            payload = base64.b64encode(b"%d" % number).decode()
            producer.send(json.dumps({"payload": payload}))
            assert json.loads(producer.recv(WAIT_S))["result"] == "ok"
            message = json.loads(consumer.recv(WAIT_S))
            assert message["payload"] == payload
            consumer.send(json.dumps({"messageId": message["messageId"]}))


@pytest.mark.slow
@pytest.mark.parametrize("index", [0, 1])
def test_clients_follow_their_topics_over_tls(cluster: Cluster, topic: str, index: int) -> None:
    """Found by lookups at either broker; unloaded to nobody in particular, and to each broker."""
    client = cluster.client(index)
    try:
        consumer = client.subscribe(topic, "s")
        producer = client.create_producer(topic, batching_enabled=False)
        bundle = cluster.ask(
            0, "GET", f"/lookup/v2/topic/persistent/public/default/{topic}-partition-0/bundle"
        ).text
        unload = f"{ADMIN}/namespaces/public/default/{bundle}/unload"
        sent: list[bytes] = []
        received: list[bytes] = []
        for tail in ("", *(f"?destinationBroker={name}" for name in cluster.names)):
            for _ in range(PARTITIONS):  # one for each partition
                sent.append(b"%d" % len(sent))
                producer.send(sent[-1])
            cluster.ask(1 - index, "PUT", unload + tail)
        while len(received) < len(sent):
            message = consumer.receive(WAIT_S * 1000)
            consumer.acknowledge(message)
            if message.data() not in received:  # at least once
                received.append(message.data())
        assert sorted(received) == sorted(sent)
        owner = cluster.owners(topic)[0]
        assert owner == cluster.service_urls[1]
    finally:
        client.close()


@pytest.mark.slow
def test_coordinators_are_opened_without_a_client(cluster: Cluster) -> None:
    """Each broker connects to those of the other one, too."""
    numbers = set(map(str, range(raw_transactions.COORDINATORS)))
    opened = re.compile(r"coordinator (\d+): \d+ transactions are open")

    def logs() -> str:
        return "".join(path.read_text() for path in cluster.process.log_paths())

    wait_until(lambda: set(opened.findall(logs())) == numbers)
    assert "opening of coordinators: failed" not in logs()


@pytest.mark.slow
@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("commit", [True, False])
def test_transactions_end_on_both_brokers(
    cluster: Cluster, topic: str, index: int, commit: bool
) -> None:
    """Messages and acknowledgements; the coordinator tells the other broker over TLS."""
    places = [cluster.service_urls.index(owner) for owner in cluster.owners(topic)]
    names = [f"persistent://public/default/{topic}-partition-{n}" for n in range(PARTITIONS)]
    for name in names:
        cluster.ask(
            0, "POST", "/topics/" + name.replace("://", "/"), {"messages": [{"payload": "old"}]}
        )
    with ExitStack() as stack:
        brokers = [stack.enter_context(cluster.raw(each)) for each in range(2)]
        home, number = stack.enter_context(cluster.raw(index)), cluster.coordinator(index)
        assert not raw_transactions.connect_to_coordinator(home, number).HasField("error")
        transaction = raw_transactions.begin(home, number)
        assert not raw_transactions.add_partitions(home, transaction, *names).HasField("error")
        for id_, (name, place) in enumerate(zip(names, places, strict=True)):
            client = brokers[place]
            assert isinstance(client.create_producer(name, id_), pb.CommandProducerSuccess)
            receipt = raw_transactions.send(client, transaction, 0, b"new", id_)
            assert receipt.type == pb.BaseCommand.SEND_RECEIPT
            assert not raw_transactions.add_subscription(home, transaction, name, "s").HasField(
                "error"
            )
            assert isinstance(client.subscribe(name, "s", id_), pb.CommandSuccess)
            client.flow(10, id_)
            position, payload = client.receive_message()
            assert payload == b"old"
            assert not raw_transactions.acknowledge(client, transaction, position, id_).HasField(
                "error"
            )
        for client in brokers:
            with pytest.raises(TimeoutError):
                client.receive_message(0.05)
        assert not raw_transactions.end(home, transaction, commit=commit).HasField("error")
        for place, client in enumerate(brokers):
            seen = [client.receive_message()[1] for _ in range(places.count(place))]
            assert set(seen) == ({b"new"} if commit else {b"old"})
        again = raw_transactions.end(home, transaction, commit=commit)
        assert again.error == pb.TransactionNotFound


@pytest.mark.slow
def test_transactions_belong_to_their_role(cluster: Cluster) -> None:
    with cluster.raw(0, "joe") as joe, cluster.raw(0, "ann") as ann:
        number = cluster.coordinator(0)
        assert not raw_transactions.connect_to_coordinator(joe, number).HasField("error")
        transaction = raw_transactions.begin(joe, number)
        for answer in (
            raw_transactions.end(ann, transaction),
            raw_transactions.add_partitions(ann, transaction, "persistent://public/default/x"),
            raw_transactions.add_subscription(
                ann, transaction, "persistent://public/default/x", "s"
            ),
            *(raw_transactions.end_on_participant(joe, transaction, each) for each in ("", "s")),
        ):
            assert answer.error == pb.NotAllowedError
            assert (answer.txnid_most_bits, answer.txnid_least_bits) == transaction
        assert not raw_transactions.end(joe, transaction).HasField("error")


@pytest.mark.slow
def test_a_broker_without_trust_in_the_other_says_so(cluster: Cluster, topic: str) -> None:
    """Last in this module: what the brokers trust is replaced, and they are started anew."""
    other_authority = Authority(cluster.authority.certificate.parent, "stranger")
    cluster.authority.certificate.with_name("kept.pem").write_bytes(
        cluster.authority.certificate.read_bytes()
    )
    cluster.authority.certificate.write_bytes(other_authority.certificate.read_bytes())
    for name, process in cluster.process.children().items():
        if name.startswith("broker"):
            process.kill()
    answers: list[str] = []

    def is_refused() -> bool:
        for url in cluster.process.web_urls:
            path = f"{TOPICS}/{topic}/partitioned-stats"
            try:
                answer = httpx.get(url + path, headers=cluster.headers, timeout=WAIT_S)
            except httpx.TransportError:
                continue  # it isn't back yet
            answers.append(answer.text)
            if answer.status_code == 503 and "CERTIFICATE_VERIFY_FAILED" in answer.text:
                return True
        return False

    wait_until(is_refused, "a broker tells that it doesn't trust the other", WAIT_S)
    assert "can't be reached" in answers[-1]
