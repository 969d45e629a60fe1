"""Compactions that begin by themselves, that end in the middle, and what they leave behind."""

import os
import random
from typing import Any

import psutil
import pulsar
import pytest

import magnetar
from magnetar.broker.compaction import topic_compaction
from magnetar.broker.compaction.process_link import CompactionProcess
from tests.interop.conftest import Admin
from tests.official_client import client_of
from tests.waiting import wait_until

TOPIC = "persistent://public/default/prices"


def _send(client: pulsar.Client, pairs: list[tuple[str, str]]) -> None:
    producer = client.create_producer(TOPIC, block_if_queue_full=True)
    for key, value in pairs:
        producer.send_async(value.encode(), lambda *_: None, partition_key=key)
    producer.flush()
    producer.close()


def _view(client: pulsar.Client) -> dict[str, str]:
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest, is_read_compacted=True)
    found = {}
    while reader.has_message_available():
        message = reader.read_next(30_000)
        found[message.partition_key()] = message.data().decode()
    reader.close()
    found.pop("", None)  # the C++ client shows what was taken out of a batch
    return found


def _status(admin: Admin) -> str:
    answer = admin.call("GET", f"{admin.topic_path(TOPIC)}/compaction")[1]
    return str(answer["status"])


def test_a_threshold_begins_it() -> None:
    with magnetar.embedded(clock="virtual") as broker, client_of(broker.service_url) as client:
        admin = Admin(broker.web_url)
        path = admin.topic_path(TOPIC)
        _send(client, [("a", "1" * 2000), ("a", "2" * 2000)])
        assert admin.call("POST", f"{path}/compactionThreshold", 3000)[0] == 204
        broker.advance("61s")
        wait_until(lambda: _status(admin) == "SUCCESS")
        done_ms = admin.call("GET", f"{path}/stats")[1]["compaction"]
        assert done_ms["lastCompactionRemovedEventCount"] == 1
        _send(client, [("a", "3")])
        broker.advance("61s")
        assert admin.call("GET", f"{path}/stats")[1]["compaction"] == done_ms, "too little is new"
        _send(client, [("b", "4" * 3000)])
        broker.advance("61s")
        wait_until(lambda: admin.call("GET", f"{path}/stats")[1]["compaction"] != done_ms)
        assert _view(client) == {"a": "3", "b": "4" * 3000}


def test_a_limit_of_the_rate_holds_a_run_back_until_it_is_lifted() -> None:
    with magnetar.embedded() as broker, client_of(broker.service_url) as client:
        admin = Admin(broker.web_url)
        path, setting = admin.topic_path(TOPIC), "brokerServiceCompactionRateInBytes"
        _send(client, [("a", "1" * 5000), ("a", "2" * 5000)])
        limit = f"/admin/v2/brokers/configuration/{setting}"
        assert admin.call("POST", f"{limit}/10000")[0] == 200
        assert admin.call("PUT", f"{path}/compaction")[0] == 204
        wait_until(lambda: _status(admin) == "SUCCESS")
        took_ms = admin.call("GET", f"{path}/stats")[1]["compaction"]
        assert took_ms["lastCompactionDurationTimeInMills"] >= 1000, "each pass"
        assert admin.call("POST", f"{limit}/1")[0] == 200
        _send(client, [("b", "3" * 5000)])
        assert admin.call("PUT", f"{path}/compaction")[0] == 204
        assert admin.call("DELETE", limit)[0] in (200, 204)
        wait_until(lambda: _status(admin) == "SUCCESS")
        assert _view(client) == {"a": "2" * 5000, "b": "3" * 5000}


def test_nobody_but_a_compaction_moves_its_cursor() -> None:
    with magnetar.embedded(clock="virtual") as broker, client_of(broker.service_url) as client:
        admin = Admin(broker.web_url)
        path = admin.topic_path(TOPIC)
        _send(client, [("a", "1")])
        assert admin.call("PUT", f"{path}/compaction")[0] == 204
        wait_until(lambda: _status(admin) == "SUCCESS")
        assert admin.call("POST", f"{path}/maxSubscriptionsPerTopic", 1)[0] == 204
        wait_until(lambda: admin.call("GET", f"{path}/maxSubscriptionsPerTopic")[1] == 1)
        assert admin.call("PUT", f"{path}/subscription/one")[0] == 204, "it doesn't count"
        assert admin.call("DELETE", f"{path}/maxSubscriptionsPerTopic")[0] == 204
        _send(client, [("b", "1")])
        own = f"{path}/subscription/__compaction"
        for method, call, body in (
            ("POST", "skip_all", None),
            ("POST", "skip/1", None),
            ("POST", "resetcursor/0", None),
            ("POST", "resetcursor", {"ledgerId": 0, "entryId": 0}),
        ):
            status, answer = admin.call(method, f"{own}/{call}", body)
            assert (status, "compactions only" in answer["reason"]) == (405, True), call
        assert admin.call("POST", f"{path}/messageTTL?messageTTL=1")[0] == 204
        everything = "/admin/v2/namespaces/public/default/clearBacklog"
        assert admin.call("POST", everything)[0] == 204, "the others are cleared"
        broker.advance("10m")
        stats = admin.call("GET", f"{path}/stats")[1]["subscriptions"]["__compaction"]
        assert stats["msgBacklog"] == 1
        found = admin.call("GET", f"{own}/explain")[1]
        assert (found["reason"], found["message"]) == (
            "notCompacted",
            "1 entry is behind the last compaction.",
        )
        assert admin.call("PUT", f"{path}/compaction")[0] == 204
        wait_until(lambda: _view(client) == {"a": "1", "b": "1"})
        with pytest.raises(pulsar.PulsarException):
            client.subscribe(TOPIC, "__compaction")


def _explained(admin: Admin, subscription: str, message: object) -> tuple[str, str]:
    """Reason and sentence."""
    path = f"{admin.topic_path(TOPIC)}/subscription/{subscription}/explain?messageId={message}"
    found = admin.call("GET", path)[1]
    return found["reason"], found["message"]


def _place(message: pulsar.MessageId) -> str:
    return f"{message.ledger_id()}:{message.entry_id()}"


def test_what_is_compacted_away_is_explained_to_who_reads_compacted() -> None:
    with magnetar.embedded() as broker, client_of(broker.service_url) as client:
        admin = Admin(broker.web_url)
        alone = client.create_producer(TOPIC, batching_enabled=False)
        pairs = [("a", "1"), ("b", "1"), ("", "1"), ("b", ""), ("c", "1"), ("a", "2")]
        ids = [
            alone.send(value.encode(), **({"partition_key": key} if key else {}))
            for key, value in pairs
        ]
        batched: dict[str, pulsar.MessageId] = {}
        producer = client.create_producer(
            TOPIC, batching_enabled=True, batching_max_publish_delay_ms=60_000
        )
        for key, value in [("c", "2"), ("d", "1"), ("d", "2")]:
            producer.send_async(
                value.encode(),
                lambda _, at, name=key + value: batched.update({name: at}),
                partition_key=key,
            )
        producer.flush()
        assert admin.call("PUT", f"{admin.topic_path(TOPIC)}/compaction")[0] == 204
        wait_until(lambda: _status(admin) == "SUCCESS")
        behind = alone.send(b"3", partition_key="c")
        client.subscribe(TOPIC, "log")
        client.subscribe(
            *(TOPIC, "table"),
            is_read_compacted=True,
            initial_position=pulsar.InitialPosition.Earliest,
        )
        entries, batch = [_place(each) for each in ids], _place(batched["c2"])
        for asked, says in (
            (entries[0], f"by {entries[5]}."),
            (entries[1], "by a later message without a value, which removed its key."),
            (entries[2], "it has no key."),
            (entries[3], "it has no value and removed its key."),
            (entries[4], f"by {batch}:-1:0."),
            (f"{batch}:-1:1", f"by {batch}:-1:2."),
        ):
            reason, sentence = _explained(admin, "table", asked)
            assert (reason, says in sentence) == ("compactedAway", True), (asked, sentence)
        for asked in (entries[5], batch, f"{batch}:-1:0", _place(behind)):
            assert _explained(admin, "table", asked)[0] != "compactedAway", asked
        assert _explained(admin, "log", entries[0])[0] != "compactedAway", "it gets all of them"


def test_a_killed_broker_leaves_the_view_before_or_the_one_after() -> None:
    rng = random.Random(7)
    values: dict[str, str] = {}
    with magnetar.embedded(mode="process") as broker:
        admin = Admin(broker.web_url)
        with client_of(broker.service_url) as client:
            client.subscribe(TOPIC, "keep").close()  # nothing may go before the first compaction
        for life in range(3):
            pairs = [(f"k{rng.randrange(40)}", f"{life}-{n}") for n in range(3000)]
            with client_of(broker.service_url) as client:
                _send(client, pairs)
            values |= dict(pairs)
            assert admin.call("PUT", f"{admin.topic_path(TOPIC)}/compaction")[0] == 204
            if life % 2:
                wait_until(lambda: _status(admin) == "SUCCESS")
            broker.faults.kill()
            # A new client: an old one tries again after ever longer pauses.
            with client_of(broker.service_url) as client:
                assert _view(client) == values, "the rest of the log is behind it"


def test_two_at_once_and_one_that_is_unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    with magnetar.embedded() as broker, client_of(broker.service_url) as client:
        admin = Admin(broker.web_url)
        path = admin.topic_path(TOPIC)
        _send(client, [(f"k{n % 7}", str(n)) for n in range(500)])
        monkeypatch.setattr(topic_compaction, "_READ_MAX", (1, 1))  # many turns of the loop
        assert admin.call("PUT", f"{path}/compaction")[0] == 204
        status, answer = admin.call("PUT", f"{path}/compaction")
        assert (status, answer["reason"]) == (409, "Compaction already in progress")
        assert admin.call("PUT", f"{path}/unload")[0] == 204
        assert _view(client) == {f"k{n % 7}": str(n) for n in range(493, 500)}
        assert _status(admin) == "NOT_RUN", "it is told since the topic was loaded"
        assert admin.call("PUT", f"{path}/compaction")[0] == 204
        wait_until(lambda: _status(admin) == "SUCCESS")
        assert _view(client) == {f"k{n % 7}": str(n) for n in range(493, 500)}


def _children_of(pid: int) -> list[psutil.Process]:
    return [each for each in psutil.Process(pid).children() if each.status() != "zombie"]


@pytest.mark.parametrize("at", ["note", "choose", "take"])
def test_a_killed_process_fails_its_compaction_only(
    monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    others = set(_children_of(os.getpid()))  # of tests that ran here before
    with magnetar.embedded() as broker, client_of(broker.service_url) as client:
        admin = Admin(broker.web_url)
        path = admin.topic_path(TOPIC)
        _send(client, [(f"k{n % 7}", str(n)) for n in range(50)])
        assert admin.call("PUT", f"{path}/compaction")[0] == 204
        wait_until(lambda: _status(admin) == "SUCCESS")
        before = admin.call("GET", f"{path}/internalStats")[1]["compactedLedger"]
        _send(client, [(f"k{n % 7}", str(n)) for n in range(50, 100)])
        asked = getattr(CompactionProcess, at)

        async def ask(process: CompactionProcess, *question: Any, **more: Any) -> Any:
            process.popen.kill()
            process.popen.wait()
            return await asked(process, *question, **more)

        with monkeypatch.context() as patched:
            patched.setattr(CompactionProcess, at, ask)
            assert admin.call("PUT", f"{path}/compaction")[0] == 204
            wait_until(lambda: _status(admin) == "ERROR")
        answer = admin.call("GET", f"{path}/compaction")[1]
        assert answer["lastError"] == "the process that compacts has ended"
        assert admin.call("GET", f"{path}/internalStats")[1]["compactedLedger"] == before
        expected = {f"k{n % 7}": str(n) for n in range(93, 100)}
        assert _view(client) == expected
        assert admin.call("PUT", f"{path}/compaction")[0] == 204
        wait_until(lambda: _status(admin) == "SUCCESS")
        assert _view(client) == expected
        wait_until(lambda: others.issuperset(_children_of(os.getpid())))
