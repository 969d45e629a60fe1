"""Words of several calls: against a real broker, and against a server that plays its part."""

import json
import threading
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pulsar
import pytest

import magnetar
from magnetar.broker.cli.main import main
from magnetar.embedding import EmbeddedBroker
from tests.official_client import open_client

Admin = Callable[..., list[str]]


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with magnetar.embedded(mode="process") as broker:
        yield broker


@pytest.fixture
def admin(broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]) -> Admin:
    return _admin(broker.web_url, capsys)


def _admin(url: str, capsys: pytest.CaptureFixture[str]) -> Admin:
    def admin(line: str, *more: str, fails: bool = False) -> list[str]:
        code = main(["admin", "--admin-url", url, *line.split(" "), *more])
        output = capsys.readouterr()
        assert code == (1 if fails else 0), output.err
        return (output.err if fails else output.out).splitlines()

    return admin


@pytest.fixture
def topic() -> str:
    return f"public/default/steps-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def sent(broker: EmbeddedBroker, topic: str) -> list[pulsar.MessageId]:
    """A batch of three messages, then one alone."""
    client = open_client(broker.service_url)
    client.subscribe(topic, "s").close()
    batched = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=10_000
    )
    for number in range(3):
        batched.send_async(b"batched %d" % number, None, partition_key="k", properties={"x": "1"})
    batched.flush()
    alone = client.create_producer(topic, batching_enabled=False)
    ids = [alone.send(b"\x00alone\xff", properties={"y": "2"})]
    client.close()
    return ids


def test_messages_are_shown(admin: Admin, topic: str, sent: list[pulsar.MessageId]) -> None:
    lines = admin(f"topics peek-messages {topic} -s s -n 5")
    assert [line for line in lines if line.startswith("Payload")] == ["Payload: 9 bytes"] * 3 + [
        "Payload: 7 bytes"
    ]
    assert 'properties: {"x": "1"}' in lines
    assert "key: k" in lines
    assert any(line.endswith(".alone.") for line in lines)
    shown = [json.loads(line) for line in admin(f"topics peek-messages {topic} -s s --json")]
    assert [message["payload"] for message in shown] == [f"batched {n}" for n in range(3)]
    assert len({message["messageId"] for message in shown}) == 3
    last = f"{sent[0].ledger_id()}:{sent[0].entry_id()}"
    ledger, entry = last.split(":")
    (line,) = admin(f"topics get-message-by-id {topic} -l {ledger} -e {entry} --json")
    assert json.loads(line)["payloadHex"] == b"\x00alone\xff".hex()
    assert json.loads(line)["messageId"] == last
    (line,) = admin(f"topics examine-messages {topic} -i latest --json")
    assert json.loads(line)["messageId"] == last
    found = json.loads("\n".join(admin(f"topics get-message-id {topic} -d 2020-01-01T00:00:00Z")))
    assert found["entryId"] == 0
    assert "is not a time" in admin(f"topics get-message-id {topic} -d today", fails=True)[0]
    (size,) = admin(f"topics get-backlog-size {topic} -m {last}")
    assert int(size) >= 0


def test_positions(admin: Admin, topic: str, sent: list[pulsar.MessageId]) -> None:
    def backlog() -> int:
        stats = json.loads("\n".join(admin(f"topics stats {topic}")))
        count: int = stats["subscriptions"]["s"]["msgBacklog"]
        return count

    last = f"{sent[0].ledger_id()}:{sent[0].entry_id()}"
    assert backlog() == 2  # entries
    admin(f"topics reset-cursor {topic} -s s -m {last}")
    assert backlog() == 1
    admin(f"topics reset-cursor {topic} -s s -t 1h")
    assert backlog() == 2
    admin(f"topics expire-messages {topic} -s s -p {sent[0].ledger_id()}:0")
    assert backlog() == 1
    admin(f"subscriptions clear-backlog {topic} -s s")
    assert backlog() == 0
    admin(f"subscriptions create {topic} -s other -m {last} -p a=1,b=2")
    properties = json.loads("\n".join(admin(f"subscriptions get-properties {topic} -s other")))
    assert properties == {"a": "1", "b": "2"}
    admin(f"subscriptions update-properties {topic} -s other --clear")
    assert admin(f"subscriptions get-properties {topic} -s other") == ["{}"]


def test_bundles(admin: Admin) -> None:
    namespace = f"public/steps-{uuid.uuid4().hex[:8]}"
    admin(f"namespaces create {namespace} -b 4")
    admin(f"topics create {namespace}/x")
    admin(f"topics create-subscription {namespace}/x -s s")
    (bundle,) = admin(f"topics bundle-range {namespace}/x")
    admin(f"namespaces unload {namespace} -b {bundle}")
    admin(
        f"namespaces split-bundle {namespace} -b {bundle} -san specified_positions_divide -sbn a",
        fails=True,
    )
    admin(f"namespaces split-bundle {namespace} -b {bundle}")
    bundles = json.loads("\n".join(admin(f"namespaces bundles {namespace}")))
    assert bundles["numBundles"] == 5
    assert "nobody to ask: give -f" in admin(f"namespaces clear-backlog {namespace}", fails=True)[0]
    admin(f"namespaces clear-backlog {namespace} -f -s s")
    admin(f"topics create-subscription {namespace}/x -s", "a+b %20/")
    admin(f"namespaces unsubscribe {namespace} -s", "a+b %20/")
    admin(f"namespaces unsubscribe {namespace} -s s")
    assert admin(f"topics subscriptions {namespace}/x") == []


def test_schemas(admin: Admin, topic: str, tmp_path: Path) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    record: dict[str, Any] = {"type": "record", "name": "R", "fields": []}
    first.write_text(json.dumps({"type": "AVRO", "schema": json.dumps(record), "properties": {}}))
    record["fields"] = [{"name": "a", "type": "int", "default": 1}]
    second.write_text(json.dumps({"type": "AVRO", "schema": json.dumps(record), "properties": {}}))
    for file in (first, second):
        admin(f"schemas upload {topic} -f", str(file))
    newest = json.loads("\n".join(admin(f"schemas get {topic}")))
    assert newest["version"] == 1
    assert json.loads(newest["data"]) == record
    assert json.loads("\n".join(admin(f"schemas get {topic} -v 0")))["version"] == 0
    everything = json.loads("\n".join(admin(f"schemas get {topic} -a")))
    assert len(everything["getSchemaResponses"]) == 2
    answer = json.loads("\n".join(admin(f"schemas version {topic} -f", str(first))))
    assert answer == {"version": 0}
    admin(f"schemas delete {topic}")
    assert admin(f"schemas get {topic}", fails=True)[0] == "magnetar: HTTP 404"


def test_quotas(admin: Admin) -> None:
    assert "belong together" in admin("resource-quotas get -n public/default", fails=True)[0]
    assert "memory" in json.loads("\n".join(admin("resource-quotas get")))


# --- what a broker of ours doesn't do yet: another server in its place


class _Part(BaseHTTPRequestHandler):
    """Answers from a list of (method, path, status, body); notes what it was asked."""

    answers: list[tuple[str, str, int, Any]]
    asked: list[tuple[str, str, Any]]

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        content = self.rfile.read(length)
        self.asked.append((self.command, self.path, json.loads(content) if content else None))
        method, path, status, body = self.answers.pop(0)
        assert (method, path) == (self.command, self.path)
        data = json.dumps(body).encode() if status != 307 else b""
        self.send_response(status)
        if status == 307:
            self.send_header("Location", f"http://{self.headers['Host']}{body}")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_DELETE = _answer

    def log_message(self, *_: object) -> None:
        """Nothing: tests are quiet."""


@pytest.fixture
def part() -> Iterator[tuple[str, type[_Part]]]:
    handler = type("Part", (_Part,), {"answers": [], "asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", handler
        server.shutdown()
        thread.join()


def test_a_redirect_keeps_method_and_body(
    part: tuple[str, type[_Part]], capsys: pytest.CaptureFixture[str]
) -> None:
    url, server = part
    path = "/admin/v2/namespaces/t/n/messageTTL"
    server.answers[:] = [("POST", path, 307, path + "?moved"), ("POST", path + "?moved", 200, None)]
    _admin(url, capsys)("namespaces set-message-ttl t/n -ttl 60")
    assert server.asked == [("POST", path, 60), ("POST", path + "?moved", 60)]


def test_waiting_for_a_compaction(
    part: tuple[str, type[_Part]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url, server = part
    monkeypatch.setattr("magnetar.broker.cli.multi_call.time.sleep", lambda _: None)
    path = "/admin/v2/persistent/public/default/x/compaction"
    running = ("GET", path, 200, {"status": "RUNNING"})
    server.answers[:] = [running, running, ("GET", path, 200, {"status": "SUCCESS"})]
    assert "SUCCESS" in "".join(_admin(url, capsys)("topics compaction-status x -w"))
    server.answers[:] = [running, ("GET", path, 200, {"status": "ERROR", "lastError": "disk"})]
    assert main(["admin", "--admin-url", url, "topics", "compaction-status", "x", "-w"]) == 1
    assert "disk" in capsys.readouterr().out


@pytest.mark.parametrize(("keep", "first_kept"), [("1", 3), ("10", 3), ("25", 2), ("1G", None)])
def test_what_is_offloaded(
    part: tuple[str, type[_Part]],
    capsys: pytest.CaptureFixture[str],
    keep: str,
    first_kept: int | None,
) -> None:
    url, server = part
    base = "/admin/v2/persistent/public/default/x"
    ledgers = [{"ledgerId": number, "size": 10} for number in (1, 2, 3)]
    server.answers[:] = [
        ("GET", base + "/internalStats", 200, {"ledgers": ledgers}),
        ("PUT", base + "/offload", 200, None),
    ]
    said = _admin(url, capsys)(f"topics offload x -s {keep}")
    if first_kept is None:
        assert said == ["nothing to offload"]
        assert len(server.asked) == 1
    else:
        (_, _, body) = server.asked[1]
        assert body == {"ledgerId": first_kept, "entryId": 0, "partitionIndex": -1}


def test_a_cluster_goes_with_its_namespaces(
    part: tuple[str, type[_Part]], capsys: pytest.CaptureFixture[str]
) -> None:
    url, server = part
    names = "/admin/v2/namespaces/t/"
    server.answers[:] = [
        ("GET", "/admin/v2/tenants", 200, ["t"]),
        ("GET", "/admin/v2/namespaces/t", 200, ["t/one", "t/both"]),
        ("GET", names + "one/replication", 200, ["c"]),
        ("DELETE", names + "one", 200, None),
        ("GET", names + "both/replication", 200, ["c", "d"]),
        ("DELETE", "/admin/v2/clusters/c", 200, None),
    ]
    _admin(url, capsys)("clusters delete c -a")
    assert server.answers == []
