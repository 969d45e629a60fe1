"""``segments`` of a standalone: what it tells is there, and is read past the broker; no more."""

import asyncio
import json
import secrets
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jwt
import psutil
import pulsar
import pytest

import magnetar
from magnetar.bookkeeper import codes
from magnetar.bookkeeper.bookie_protocol import frames_v2 as v2
from magnetar.bookkeeper.bookie_protocol.own_login import MAGNETAR, REFUSED
from magnetar.bookkeeper.packet import encode_head
from magnetar.bookkeeper.proto import bookkeeper_protocol_pb2 as pb
from magnetar.bookkeeper.transport import AddRequest, ReadRequest
from magnetar.embedding import EmbeddedBroker
from tests.certificates import Authority
from tests.official_client import open_client
from tests.segment_reader import SegmentReader, read_everything, with_reader
from tests.standalone_process import StandaloneProcess
from tests.waiting import wait_until

WAIT_S = 60.0
ADMIN = "/admin/v2"
SECRET = bytes(range(40, 72))
SMALL_LEDGERS = {
    "managedLedgerMaxEntriesPerLedger": "10",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
}
AUTHENTICATION: dict[str, Any] = {
    "authenticationEnabled": "true",
    "authenticationProviders": "token",
    "tokenSecretKey": f"data:,{''.join(f'%{each:02x}' for each in SECRET)}",
    "authorizationEnabled": "true",
    "superUserRoles": "admin",
}


def options(settings: dict[str, str]) -> list[str]:
    return [word for pair in settings.items() for word in ("--set", "=".join(pair))]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneProcess]:
    data = tmp_path_factory.mktemp("segments") / "data"
    with StandaloneProcess(data, *options(SMALL_LEDGERS)) as process:
        yield process


@pytest.fixture
def admin(server: StandaloneProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.admin_url + ADMIN, timeout=WAIT_S) as client:
        yield client


@pytest.fixture
def client(server: StandaloneProcess) -> Iterator[pulsar.Client]:
    made = client_of(server.service_url)
    yield made
    made.close()


@pytest.fixture
def path(admin: httpx.Client) -> str:
    """A topic of its own, whose entries a subscription keeps."""
    found = f"/persistent/public/default/segments-{secrets.token_hex(5)}"
    assert admin.put(found).status_code == 204
    done(admin.put(f"{found}/subscription/keeps-all"))
    return found


def client_of(service_url: str, **more: Any) -> pulsar.Client:
    return open_client(service_url, operation_timeout_seconds=60, **more)


def topic_of(path: str) -> str:
    return path.replace("/persistent/", "persistent://", 1)


def done(answer: httpx.Response) -> httpx.Response:
    assert answer.status_code in (200, 204), answer.text
    return answer


def segments(admin: httpx.Client, path: str, **query: object) -> dict[str, Any]:
    answer = admin.get(f"{path}/segments", params={k: str(v) for k, v in query.items()})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def publish(client: pulsar.Client, path: str, first: int, end: int) -> list[tuple[int, int, bytes]]:
    """(ledger id, entry id, payload) of each message, as its receipt says."""
    producer = client.create_producer(topic_of(path), batching_enabled=False)
    sent = []
    for number in range(first, end):
        payload = b"%06d" % number * (1 + number % 50)
        receipt = producer.send(payload)
        sent.append((receipt.ledger_id(), receipt.entry_id(), payload))
    producer.close()
    return sent


def read(answer: dict[str, Any]) -> list[tuple[int, int, bytes]]:
    return [(x.ledger_id, x.entry_id, x.payload) for x in read_everything(answer)]


def position(ledger_id: int, entry_id: int) -> dict[str, int]:
    return {"ledgerId": ledger_id, "entryId": entry_id}


# --- what is told


def test_every_message_is_read_past_the_broker(
    admin: httpx.Client, client: pulsar.Client, path: str
) -> None:
    sent = publish(client, path, 0, 34)
    answer = segments(admin, path)
    assert answer["topic"] == topic_of(path)
    assert (answer["headBytes"], answer["terminated"]) == (0, False)
    assert [x["entries"] for x in answer["ledgers"]] == [10, 10, 10, 4]
    assert answer["first"] == position(*sent[0][:2])
    assert answer["lastConfirmed"] == position(*sent[-1][:2])
    assert list(answer["bookies"]) == ["embedded"]
    assert answer["instanceId"]
    assert "bookieToken" not in answer
    assert all(x["createdAt"] > 1_600_000_000_000 for x in answer["ledgers"])
    assert answer["ledgers"][-1]["closedAt"] == 0 < answer["ledgers"][0]["closedAt"]
    assert read(answer) == sent
    # What comes later is told later, and read on the same port.
    sent += publish(client, path, 34, 40)
    last = answer["lastConfirmed"]["ledgerId"]
    later = segments(admin, path, fromLedger=last)
    assert later["bookies"] == answer["bookies"]
    assert [x["entries"] for x in later["ledgers"]] == [10]
    assert later["first"] == answer["first"]
    assert read(segments(admin, path)) == sent


def test_what_is_told_to_who_polls(admin: httpx.Client, client: pulsar.Client, path: str) -> None:
    publish(client, path, 0, 25)

    def are_closed() -> bool:
        """A full ledger is closed behind the last receipt."""
        told = segments(admin, path, locations="false")["ledgers"]
        return [each["closedAt"] > 0 for each in told] == [True, True, False]

    wait_until(are_closed, "two ledgers are closed")
    whole = segments(admin, path)
    short = segments(admin, path, locations="false")
    left_out = {"bookies", "instanceId"}
    assert short.keys() == whole.keys() - left_out
    assert [{**x, "createdAt": -1} for x in short["ledgers"]] == short["ledgers"]
    for told, known in zip(short["ledgers"], whole["ledgers"], strict=True):
        assert told == {k: v for k, v in known.items() if k != "metadata"} | {"createdAt": -1}
    ids = [x["ledgerId"] for x in whole["ledgers"]]
    for first, left in ((ids[1], ids[1:]), (ids[1] + 1, ids[2:]), (ids[-1] + 1, []), (-1, ids)):
        found = segments(admin, path, fromLedger=first, locations="false")
        assert [x["ledgerId"] for x in found["ledgers"]] == left
        assert (found["first"], found["lastConfirmed"]) == (whole["first"], whole["lastConfirmed"])


def test_an_empty_topic(admin: httpx.Client, path: str) -> None:
    assert segments(admin, path) == {
        "topic": topic_of(path),
        "headBytes": 0,
        "terminated": False,
        "first": position(-1, 0),
        "lastConfirmed": position(-1, -1),
        "ledgers": [],
        "bookies": {},
        "instanceId": "",
    }


def test_a_trimmed_topic(admin: httpx.Client, client: pulsar.Client, path: str) -> None:
    sent = publish(client, path, 0, 34)
    consumer = client.subscribe(topic_of(path), "keeps-all")
    for _ in range(25):
        message = consumer.receive(60_000)
        consumer.acknowledge(message)
    wait_until(lambda: len(segments(admin, path)["ledgers"]) == 2)
    answer = segments(admin, path)
    assert answer["first"] == position(*sent[20][:2])
    assert read(answer) == sent[20:]
    consumer.close()
    done(admin.delete(f"{path}/truncate"))
    wait_until(lambda: segments(admin, path)["ledgers"] == [])
    nothing = segments(admin, path)
    ledger_id, entry_id, _ = sent[-1]
    assert nothing["lastConfirmed"] == position(ledger_id, entry_id)
    assert nothing["first"] == position(ledger_id, entry_id + 1)


def test_a_terminated_topic(admin: httpx.Client, client: pulsar.Client, path: str) -> None:
    sent = publish(client, path, 0, 5)
    done(admin.post(f"{path}/terminate"))
    answer = segments(admin, path)
    assert answer["terminated"] is True
    assert read(answer) == sent
    done(admin.put(f"{path}/unload"))  # whoever loads it finds the same
    again = segments(admin, path)
    assert again == {**answer, "ledgers": again["ledgers"]}
    assert again["ledgers"][0]["closedAt"] > 0


def test_an_offloaded_topic(
    server: StandaloneProcess, admin: httpx.Client, client: pulsar.Client, path: str
) -> None:
    sent = publish(client, path, 0, 34)
    policies = {"managedLedgerOffloadDriver": "filesystem"}
    done(admin.post(f"{path}/offloadPolicies", json=policies))
    ids = [x["ledgerId"] for x in segments(admin, path)["ledgers"]]
    upto = {"ledgerId": ids[2], "entryId": 0, "partitionIndex": -1}
    wait_until(lambda: admin.put(f"{path}/offload", json=upto).status_code == 204)
    wait_until(lambda: ["copy" in x for x in segments(admin, path)["ledgers"]] == [1, 1, 0, 0])
    answer = segments(admin, path)
    assert all("metadata" in x for x in answer["ledgers"])
    copy = answer["ledgers"][0]["copy"]
    assert (copy["driver"], copy["isOnly"]) == ("filesystem", False)
    assert copy["location"] == {"fileSystemURI": (server.data / "offloaded").as_uri()}
    assert copy["size"] > 0
    assert read(answer) == sent
    # Bookies' ledgers go: only the copies are told.
    done(
        admin.post(
            f"{path}/offloadPolicies",
            json={**policies, "managedLedgerOffloadDeletionLagInMillis": 0},
        )
    )
    wait_until(lambda: ["metadata" in x for x in segments(admin, path)["ledgers"]] == [0, 0, 1, 1])
    answer = segments(admin, path)
    assert [x["copy"]["isOnly"] for x in answer["ledgers"][:2]] == [True, True]
    assert "copy" not in segments(admin, path, locations="false")["ledgers"][0]
    assert read(answer) == sent


def test_partitions_and_what_has_no_segments(admin: httpx.Client, client: pulsar.Client) -> None:
    name = f"segments-{secrets.token_hex(5)}"
    parts = f"/persistent/public/default/{name}"
    done(admin.put(f"{parts}/partitions", json=2))
    done(admin.put(f"{parts}/subscription/keeps-all"))
    sent = [publish(client, f"{parts}-partition-{n}", 0, 3 + n) for n in range(2)]
    for number, expected in enumerate(sent):
        answer = segments(admin, f"{parts}-partition-{number}")
        assert answer["topic"] == f"{topic_of(parts)}-partition-{number}"
        assert read(answer) == expected
    volatile = f"/non-persistent/public/default/{name}"
    done(admin.put(volatile))
    for path, status in (
        (parts, 405),
        (f"{parts}-partition-2", 404),
        ("/persistent/public/default/nobody-made-this", 404),
        ("/persistent/public/nowhere/t", 404),
        (volatile, 405),
    ):
        refused = admin.get(f"{path}/segments")
        assert (refused.status_code, list(refused.json())) == (status, ["reason"]), path


@pytest.mark.parametrize("value", ["", "x", "1.5", "-2", str(2**63)])
def test_a_ledger_that_is_no_number(admin: httpx.Client, path: str, value: str) -> None:
    answer = admin.get(f"{path}/segments", params={"fromLedger": value})
    assert answer.status_code == 400
    assert "fromLedger" in answer.json()["reason"]


# --- the port


def listening(pid: int) -> set[int]:
    found = psutil.Process(pid).net_connections("tcp")
    return {x.laddr.port for x in found if x.status == psutil.CONN_LISTEN}


def test_the_port_is_opened_by_who_asks_for_locations(fresh_standalone: StandaloneProcess) -> None:
    server = fresh_standalone
    before = listening(server.pid)
    path = "/persistent/public/default/t"
    with httpx.Client(base_url=server.admin_url + ADMIN, timeout=WAIT_S) as admin:
        client = client_of(server.service_url)
        sent = publish(client, path, 0, 3)
        client.close()
        segments(admin, path, locations="false")
        assert listening(server.pid) == before
        # At once: there is one port for all of them.
        loop_answers = [
            x.json() for x in asyncio.run(many(server.admin_url + ADMIN + path + "/segments", 8))
        ]
        ports = {x["bookies"]["embedded"]["port"] for x in loop_answers}
        assert len(ports) == 1
        assert listening(server.pid) == before | ports
        assert loop_answers[0]["bookies"]["embedded"]["host"] == "localhost"
        assert read(loop_answers[0]) == sent
    server.stop()  # in the orderly way, the port is nothing to wait for


async def many(url: str, count: int) -> list[httpx.Response]:
    async with httpx.AsyncClient(timeout=WAIT_S) as http:
        return await asyncio.gather(*(http.get(url) for _ in range(count)))


def test_nothing_can_be_changed_there(
    admin: httpx.Client, client: pulsar.Client, path: str
) -> None:
    producer = client.create_producer(topic_of(path), batching_enabled=False)
    first = producer.send(b"before")
    answer = segments(admin, path)
    ledger_id, key = first.ledger_id(), bytes(20)

    async def attack(reader: SegmentReader) -> list[int]:
        bookie = reader.bookie("embedded")
        assert bookie is not None
        added: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        head = encode_head(ledger_id, 1, 0, 8, b"head", b"evil")
        bookie.add_entries(
            AddRequest(
                *(ledger_id, key, [1], [head], [b"evil"], len(head) + 4, True),
                lambda _, code: added.set_result(code),
            )
        )
        return [
            await added,
            (
                await bookie.read_entries(
                    ReadRequest(ledger_id, 0, 1, 1, fence=True, master_key=key)
                )
            ).code,
        ]

    assert with_reader(answer, attack) == [codes.READ_ONLY] * 2
    after = producer.send(b"after")  # the ledger wasn't fenced, and has no entry of ours
    assert (after.ledger_id(), after.entry_id()) == (ledger_id, 1)
    assert [payload for _, _, payload in read(segments(admin, path))] == [b"before", b"after"]


def test_where_the_port_is_and_when_it_cannot_be_opened(tmp_path: Path) -> None:
    path = "/persistent/public/default/t"
    taken = socket.create_server(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    settings = options({"bookiePort": str(port), "advertisedAddress": "127.0.0.1"})
    with (
        StandaloneProcess(tmp_path / "data", *settings) as server,
        httpx.Client(base_url=server.admin_url + ADMIN, timeout=WAIT_S) as admin,
    ):
        client = client_of(server.service_url)
        sent = publish(client, path, 0, 3)
        for _ in range(2):
            refused = admin.get(f"{path}/segments")
            assert refused.status_code == 503
            assert str(port) in refused.json()["reason"]
        taken.close()
        answer = segments(admin, path)
        assert answer["bookies"] == {"embedded": {"host": "127.0.0.1", "port": port}}
        assert read(answer) == sent
        client.close()


def test_no_port_is_wanted(tmp_path: Path) -> None:
    path = "/persistent/public/default/t"
    with (
        StandaloneProcess(tmp_path / "data", *options({"bookiePort": ""})) as server,
        httpx.Client(base_url=server.admin_url + ADMIN, timeout=WAIT_S) as admin,
    ):
        client = client_of(server.service_url)
        publish(client, path, 0, 3)
        before = listening(server.pid)
        answer = segments(admin, path)
        assert (answer["bookies"], len(answer["ledgers"])) == ({}, 1)
        assert listening(server.pid) == before
        client.close()


def test_a_broker_that_serves_only_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.sign("localhost")
    settings: dict[str, Any] = {
        "brokerServicePort": "",
        "webServicePort": "",
        "brokerServicePortTls": 0,
        "webServicePortTls": 0,
        "tlsCertificateFilePath": pair.certificate,
        "tlsKeyFilePath": pair.key,
    }
    path = "/persistent/public/default/t"
    with magnetar.embedded(tmp_path / "data", "process", **settings) as broker:
        client = client_of(
            broker.service_url_tls,
            tls_trust_certs_file_path=str(authority.certificate),
            tls_validate_hostname=True,
        )
        sent = publish(client, path, 0, 3)
        context = ssl.create_default_context(cafile=authority.certificate)
        url = broker.web_url_tls + ADMIN
        with httpx.Client(base_url=url, verify=context, timeout=WAIT_S) as admin:
            answer = segments(admin, path)
        trust = authority.certificate.read_bytes()
        found = read_everything(answer, trust=trust)
        assert [(x.ledger_id, x.entry_id, x.payload) for x in found] == sent
        ledger_id = sent[0][0]
        assert with_reader(answer, lambda x: code_of_read(x, ledger_id)) == codes.UNAVAILABLE
        client.close()


# --- who may ask, and read


def token(role: str) -> str:
    return jwt.encode({"sub": role}, SECRET, "HS256")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A broker whose clients have to be somebody, with two namespaces of different readers."""
    data = tmp_path_factory.mktemp("guarded") / "data"
    with magnetar.embedded(data, "process", **AUTHENTICATION) as broker:
        with http_of(broker, "admin") as admin:
            for namespace, reader in (("one", "reads-one"), ("two", "reads-two")):
                done(admin.put(f"/namespaces/public/{namespace}"))
                rights = f"/namespaces/public/{namespace}/permissions"
                done(admin.post(f"{rights}/{reader}", json=["consume"]))
                done(admin.post(f"{rights}/writes", json=["produce"]))
        yield broker


def http_of(broker: EmbeddedBroker, role: str | None) -> httpx.Client:
    headers = {} if role is None else {"Authorization": f"Bearer {token(role)}"}
    return httpx.Client(base_url=broker.web_url + ADMIN, headers=headers, timeout=WAIT_S)


async def code_of_read(reader: SegmentReader, ledger_id: int) -> int:
    bookie = reader.bookie("embedded")
    assert bookie is not None
    return (await bookie.read_entries(ReadRequest(ledger_id, 0, 1, 1))).code


async def answer_to_login(answer: dict[str, Any], shown: str | None) -> str:
    """What the bookie says to it."""
    address = answer["bookies"]["embedded"]
    fields = {"bookieId": "embedded", "instanceId": ""} | (
        {} if shown is None else {"token": shown}
    )
    login = pb.AuthMessage(authPluginName=MAGNETAR, payload=json.dumps(fields).encode())
    reader, writer = await asyncio.open_connection(address["host"], address["port"])
    writer.write(v2.encode_auth(login.SerializeToString()))
    async with asyncio.timeout(WAIT_S):
        said = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
    writer.transport.abort()
    return pb.AuthMessage.FromString(said[4:]).payload.decode()


def test_who_may_consume_may_ask(guarded: EmbeddedBroker) -> None:
    path = "/persistent/public/one/asked"
    with http_of(guarded, "admin") as admin:
        done(admin.put(path))
    for role, status in (
        ("admin", 200),
        ("reads-one", 200),
        ("writes", 401),
        ("reads-two", 401),
        (None, 401),
    ):
        for query in ("", "?locations=false"):
            with http_of(guarded, role) as asking:
                assert asking.get(f"{path}/segments{query}").status_code == status, role


def test_a_token_opens_the_topic_it_was_given_for(guarded: EmbeddedBroker) -> None:
    writer = client_of(
        guarded.service_url, authentication=pulsar.AuthenticationToken(token("writes"))
    )
    answers, sent = [], []
    for namespace in ("one", "two"):
        path = f"/persistent/public/{namespace}/t"
        with http_of(guarded, "admin") as admin:
            done(admin.put(path))
            done(admin.put(f"{path}/subscription/keeps-all"))
        sent.append(publish(writer, path, 0, 5))
        with http_of(guarded, f"reads-{namespace}") as reader:
            answers.append(segments(reader, path))
    writer.close()
    one, two = answers
    assert one["bookies"] == two["bookies"]
    assert [read(one), read(two)] == sent
    mine, others = sent[0][0][0], sent[1][0][0]

    async def look(reader: SegmentReader) -> list[int]:
        bookie = reader.bookie("embedded")
        assert bookie is not None
        return [
            await code_of_read(reader, mine),
            await code_of_read(reader, others),
            await code_of_read(reader, 123_456_789),
        ]

    assert with_reader(one, look) == [codes.OK, codes.UNAUTHORIZED, codes.NO_LEDGER]


@pytest.mark.parametrize("shown", [None, "", "nonsense", "client"])
def test_without_the_token_nothing_is_read(guarded: EmbeddedBroker, shown: str | None) -> None:
    path = f"/persistent/public/one/closed-{secrets.token_hex(5)}"
    writer = client_of(
        guarded.service_url, authentication=pulsar.AuthenticationToken(token("writes"))
    )
    with http_of(guarded, "admin") as admin:
        done(admin.put(path))
        done(admin.put(f"{path}/subscription/keeps-all"))
        publish(writer, path, 0, 1)
        answer = segments(admin, path)
    writer.close()
    if shown == "client":
        shown = token("admin")  # good on every other port of this process
    assert asyncio.run(answer_to_login(answer, shown)) == REFUSED
    assert asyncio.run(answer_to_login(answer, answer["bookieToken"])) == ""
