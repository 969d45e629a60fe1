"""``magnetar doctor`` against servers that play a broker's part."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
import pytest

from magnetar.broker.cli import doctor_command
from magnetar.broker.cli.main import main
from magnetar.broker.doctor.findings import Finding, Report, Severity

LOST = Finding("bookie-lost", Severity.WARNING, "b1", "b1: it isn't there", "magnetar version", 0)
IDLE = Finding("subscription-idle", Severity.NOTE, "t", "t: nobody reads", "magnetar admin topics")
SILENT = Finding("broker-silent", Severity.CRITICAL, "b2", "b2: no answer")


class Server:
    """Answers by path; ``ahead_ms`` is how wrong its clock is."""

    def __init__(self) -> None:
        self.report = Report("main", "b1:8080", 0, ["b1:8080"])
        self.status, self.ahead_ms = 200, 0
        self.pulsar: dict[str, Any] | None = None  # its answers by path
        self.seen: dict[str, set[str | None]] = {}  # credentials by the name in the URL

    def answer(self, path: str) -> tuple[int, Any]:
        if self.pulsar is not None:
            found = self.pulsar.get(path.removeprefix("/admin/v2/"))
            if isinstance(found, tuple):
                return found
            return (404, "<html>") if found is None else (200, found)
        if self.status != 200:
            return self.status, {"reason": "no superuser"}
        if path == "/admin/v2/doctor":
            return 200, self.report.as_json()
        return 200, {"clockMs": time.time_ns() // 1_000_000 + self.ahead_ms}


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def url(server: Server) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            host = self.headers["Host"].partition(":")[0]
            server.seen.setdefault(host, set()).add(self.headers["Authorization"])
            status, value = server.answer(self.path)
            body = json.dumps(value).encode()
            self.send_response(status)  # with a Date
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        thread = threading.Thread(target=listener.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{listener.server_port}"
        listener.shutdown()
        thread.join()


def doctor(url: str, *options: str) -> int:
    return main(["doctor", "--admin-url", url, *options])


def findings(capsys: pytest.CaptureFixture[str]) -> list[tuple[str, str]]:
    found = json.loads(capsys.readouterr().out)["findings"]
    return [(each["check"], each["severity"]) for each in found]


def test_the_worst_comes_first(
    server: Server, url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_command, "_now_ms", lambda: 7_300_000)
    server.report.findings = [IDLE, LOST, IDLE, SILENT]
    server.report.not_looked_at = ["bookies: no session"]
    monkeypatch.setattr(doctor_command, "_clock", lambda _: None)
    assert doctor(url) == 1
    assert capsys.readouterr().out.splitlines() == [
        "cluster main, seen by b1:8080: 1 critical, 1 warning, 2 notes",
        "",
        "CRITICAL  b2: no answer",
        "",
        "WARNING   b1: it isn't there",
        "          since 1970-01-01 00:00:00 UTC, 2 h",
        "          $ magnetar version",
        "",
        *("NOTE      t: nobody reads", f"          $ magnetar --admin-url {url} admin topics", "")
        * 2,
        "not looked at:",
        "  bookies: no session",
    ]


@pytest.mark.parametrize(("found", "code"), [([], 0), ([IDLE], 0), ([LOST], 1), ([SILENT], 1)])
def test_the_exit_code_is_that_of_the_worst(
    server: Server, url: str, found: list[Finding], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    server.report.findings = found
    assert doctor(url) == code
    assert ("nothing is wrong" in capsys.readouterr().out) == (not found)


@pytest.mark.parametrize(("ahead_ms", "told"), [(0, False), (-2_000, False), (20_000, True)])
def test_the_clock_here_is_compared(
    server: Server, url: str, ahead_ms: int, told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    server.ahead_ms = ahead_ms
    doctor(url)
    text = capsys.readouterr().out
    assert ("this machine: its clock is" in text) == told
    assert (f"behind that of {url}" in text) == told


def test_a_broker_that_doesnt_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor("http://127.0.0.1:1", "--json") == 1
    assert findings(capsys) == [("broker-silent", "critical")]


def test_who_may_not_look_is_told(
    server: Server, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server.status = 401
    assert doctor(url, "--json") == 1
    assert findings(capsys) == [("access-refused", "critical")]


def test_an_address_that_clients_cant_reach(
    server: Server, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server.report.addresses = [url.replace("http:", "pulsar:"), "pulsar://127.0.0.1:1"]
    assert doctor(url, "--json") == 1
    assert findings(capsys) == [("broker-unreachable", "warning")]


@pytest.mark.parametrize(("days", "severity"), [(-1, "critical"), (10, "warning"), (40, None)])
def test_the_own_token_ends(
    url: str,
    days: int,
    severity: str | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    token = jwt.encode({"sub": "me", "exp": int(time.time()) + days * 86_400}, "k" * 32)
    file = tmp_path / "token"
    file.write_text(token)
    doctor(url, "--auth-plugin", "token", "--auth-params", f"file://{file}", "--json")
    assert findings(capsys) == ([] if severity is None else [("token-end", severity)])


BUNDLE = {"topics": 2_000, "consumerCount": 1, "producerCount": 1}
SUBSCRIPTION = {"msgBacklog": 4, "consumers": [{"availablePermits": 0}]}
TOPIC = "persistent://public/default/t"


def pulsar(**changed: Any) -> dict[str, Any]:
    """Answers of Apache Pulsar 4.2.4 with one broker, shortened."""
    usage = {"usage": 50.0, "limit": 200.0}
    stats = {"subscriptions": {"s": SUBSCRIPTION, "__compaction": {"msgBacklog": 9}}}
    return {
        "brokers": ["b1:8080"],
        "brokers/version": "4.2.4",
        "brokers/leaderBroker": {"serviceUrl": "http://b1:8080", "brokerId": "b1:8080"},
        "brokers/configuration/runtime": {
            "managedLedgerDefaultEnsembleSize": "2",
            "loadBalancerNamespaceBundleMaxTopics": "1000",
        },
        "broker-stats/load-report": {
            **dict.fromkeys(("cpu", "memory", "directMemory"), usage),
            "numTopics": 1,
            "lastStats": {"public/default/0x0_0xf": BUNDLE},
        },
        "broker-stats/topics": {"public/default": {"0x0_0xf": {"persistent": {TOPIC: stats}}}},
        "persistent/public/default/t/stats": stats,
        "bookies/all": {"bookies": [{"bookieId": "k1:3181"}]},
        **changed,
    }


def test_apache_pulsar_is_looked_at_by_its_admin_api(
    server: Server, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server.pulsar = pulsar()
    assert doctor(url, "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert [(each["check"], each["subject"]) for each in report["findings"]] == [
        ("bookies-too-few", "bookies"),
        ("subscription-stuck", f"{TOPIC}, subscription s"),
        ("bundle-hot", "public/default/0x0_0xf"),
    ]
    assert len(report["notLookedAt"]) == 2  # what its API hides


TRANSACTIONS = "/admin/v3/transactions"


def test_transactions_of_apache_pulsar(
    server: Server, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    committing = {
        "txnId": "(1,7)",
        "status": "COMMITTING",
        "openTimestamp": 0,
        "timeoutAt": 60_000,
        "producedPartitions": {TOPIC: {}},
        "ackedPartitions": {TOPIC: {"s": {}}},
    }
    settings = pulsar()["brokers/configuration/runtime"]
    slow = f"{TRANSACTIONS}/slowTransactions/60000?coordinatorId="
    absent = {"reason": "Transaction coordinator not found! coordinator id : 0"}
    gone = {
        "reason": f"\n --- An error ---\n\nMessage: Topic not found {TOPIC}\n\nStacktrace:\n\nat"
    }
    server.pulsar = pulsar(
        **{
            "brokers/configuration/runtime": {**settings, "transactionCoordinatorEnabled": "true"},
            f"{TRANSACTIONS}/coordinators": [{"id": number} for number in range(3)],
            f"{slow}0": (404, absent),
            f"{slow}1": {"(1,7)": committing},
            f"{slow}2": (500, gone),
        }
    )
    doctor(url, "--json")
    report = json.loads(capsys.readouterr().out)
    found = {each["check"]: (each["severity"], each["subject"]) for each in report["findings"]}
    assert found["coordinator-missing"] == ("note", "coordinator 0")  # as any that isn't used
    assert found["transaction-stuck"] == ("critical", "transaction (1,7)")
    assert f"coordinator 2: Topic not found {TOPIC}" in report["notLookedAt"]


def test_what_pulsar_refuses_is_told_and_hides_nothing_else(
    server: Server, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    load = {**pulsar()["broker-stats/load-report"], "numTopics": 1_000_000}
    server.pulsar = pulsar(**{"broker-stats/load-report": load, "brokers/leaderBroker": None})
    del server.pulsar["bookies/all"]
    assert doctor(url, "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert [each["check"] for each in report["findings"]] == ["leader-missing"]
    missing = [each.partition(":")[0] for each in report["notLookedAt"]]
    assert missing.count("bookies") == 2
    assert any("1000000 topics" in each for each in report["notLookedAt"])


def test_credentials_go_to_the_asked_broker_alone(
    server: Server, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    own = url.removeprefix("http://")
    other = own.replace("127.0.0.1", "localhost")
    server.pulsar = pulsar(brokers=[own, other, "127.0.0.1:1"])
    doctor(url, "--auth-plugin", "token", "--auth-params", "token:secret", "--json")
    assert server.seen == {"127.0.0.1": {"Bearer secret"}, "localhost": {None}}
    report = json.loads(capsys.readouterr().out)
    silent = [each for each in report["findings"] if each["check"] == "broker-silent"]
    assert [each["subject"] for each in silent] == ["127.0.0.1:1"]
    assert any(each.startswith(f"{other}: settings and topics") for each in report["notLookedAt"])
