"""`magnetar verify`: a standalone keeps its promises; bugs that are planted in one are found."""

import asyncio
import functools
import itertools
import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from signal import SIGINT, SIGTERM, Signals, default_int_handler, signal
from typing import Any

import httpx
import pytest

import magnetar
from magnetar.broker.cli.main import main
from magnetar.broker.cli.profiles import ClusterTarget
from magnetar.broker.cli.verify import topic_check, verify_command
from magnetar.broker.cli.verify.reader import SUBSCRIPTION
from magnetar.broker.cli.verify.run import Outcome, VerifySettings, run_rounds
from magnetar.broker.cli.verify.sender import Sender
from magnetar.broker.cli.verify.topic_check import TopicCheck
from magnetar.broker.connection.consumer_sink import BinaryConsumerSink
from magnetar.broker.dispatch.delayed_index import DelayedIndex
from magnetar.broker.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.producer.sequence_ids import SequenceIds
from magnetar.broker.protocol.messages import is_chunk, open_entry
from magnetar.broker.subscription.persistent_subscription import (
    PersistentSubscription,
    start_position,
)
from magnetar.broker.topic.topic_directory import TopicDirectory
from magnetar.broker.verify.history import AckAsked, End, Ended, Rule, Sought, Violation
from magnetar.broker.verify.plan import Group, draw_groups
from magnetar.embedding import EmbeddedBroker
from magnetar.managed_ledger.cursor.ack_state import AckState
from magnetar.managed_ledger.position import Position
from tests.free_port import free_port
from tests.nightly import NIGHTLY

PATIENCES_S = 3.0, 10.0, 40.0
"""How long nothing may come: the next one where a busy machine let nobody in for so long."""
MESSAGES = 2000 if NIGHTLY else 60
SEED = () if NIGHTLY else ("--seed", "7")


def verify(*arguments: str) -> int:
    return main(["verify", "--seconds", "0", "--messages", f"{MESSAGES}", *SEED, *arguments])


def test_a_standalone_is_clean(
    service_url: str,
    admin_url: str,
    admin: httpx.Client,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = tmp_path / "report.html"
    urls = ("--url", service_url, "--admin-url", admin_url)
    assert verify(*urls, "--json", "--report", str(report)) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["verdict"], told["unchecked"]) == ("clean", [])
    lossy = [topic for topic in told["topics"] if topic["topic"].startswith("non-persistent:")]
    assert [topic["sent"] > MESSAGES and topic["stored"] == 0 for topic in lossy] == [True]
    sent = told["totals"]["sent"] - lossy[0]["sent"]
    assert sent == 9 * MESSAGES // 2 + 6  # and the last message of each topic
    assert lossy[0]["delivered"] + lossy[0]["missed"] >= 4 * (MESSAGES + 1)
    delivered = told["totals"]["delivered"] - lossy[0]["delivered"]
    assert delivered >= 4 * (7 * MESSAGES // 2 + 5) + 2 * (MESSAGES + 1)
    assert told["disturbances"]["partition added"] == 1
    assert "Clean: every promise was kept" in report.read_text()
    topics = admin.get("/persistent/public/default").json()
    assert [topic for topic in topics if "/verify-" in topic] == []


def test_without_the_rights_the_rest_is_checked(
    service_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    assert verify("--url", service_url, "--admin-url", nobody, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert [topic["sent"] for topic in told["topics"]] == [MESSAGES + 1]
    assert "does not answer" in told["unchecked"][0]


def test_without_its_namespace_nobody_can_say(
    service_url: str, admin_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    urls = ("--url", service_url, "--admin-url", admin_url)
    assert verify(*urls, "--namespace", "public/none-of-this-name") == 2
    assert "Namespace" in capsys.readouterr().err


def test_urls_of_different_clusters_are_told(
    service_url: str, admin: httpx.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    before = admin.get("/persistent/public/default").json()
    with magnetar.embedded() as other:
        assert verify("--url", service_url, "--admin-url", other.web_url) == 2
        assert "are of different clusters" in capsys.readouterr().err
        assert httpx.get(f"{other.web_url}/admin/v2/persistent/public/default").json() == []
    assert admin.get("/persistent/public/default").json() == before


def test_without_a_cluster_nobody_can_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nobody, earlier = f"pulsar://127.0.0.1:{free_port()}", tmp_path / "earlier.html"
    earlier.write_text("of yesterday")
    assert verify("--url", nobody, "--report", str(earlier)) == 2
    assert "can't be reached" in capsys.readouterr().err
    assert verify("--url", nobody, "--report", str(tmp_path / "new.html")) == 2
    assert [(each, each.read_text()) for each in tmp_path.iterdir()] == [(earlier, "of yesterday")]


@pytest.mark.parametrize(("number", "code"), [(SIGINT, 130), (SIGTERM, 143)])
def test_an_interrupted_run_tells_what_it_has(
    number: Signals,
    code: int,
    service_url: str,
    admin_url: str,
    admin: httpx.Client,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verify_command, "_tell_round", lambda _: os.kill(os.getpid(), number))
    left = {*admin.get("/persistent/public/default").json()}  # by runs that may not delete any
    before = signal(SIGINT, default_int_handler)  # where tests run in the background it is ignored
    report = tmp_path / "report.html"
    urls = ("--url", service_url, "--admin-url", admin_url, "--report", str(report))
    try:
        assert verify(*urls, "--messages", "10", "--seconds", "600") == code
    finally:
        signal(SIGINT, before)
    assert "Nobody can say: interrupted (1 round in " in capsys.readouterr().out
    assert "Nobody can say: interrupted (1 round in " in report.read_text()
    topics = {*admin.get("/persistent/public/default").json()} - left
    assert [topic for topic in topics if "/verify-" in topic] == []


@pytest.mark.parametrize(
    ("path", "policy", "told"),
    [
        ("messageTTL", 60, "has a message TTL"),
        (
            "backlogQuota",
            {"limitSize": 10**9, "policy": "consumer_backlog_eviction"},
            "evicts messages",
        ),
    ],
)
def test_where_messages_are_removed_nobody_can_say(
    service_url: str,
    admin_url: str,
    admin: httpx.Client,
    capsys: pytest.CaptureFixture[str],
    path: str,
    policy: Any,
    told: str,
) -> None:
    namespace = f"public/verify-{path}"
    assert admin.put(f"/namespaces/{namespace}").status_code == 204
    assert admin.post(f"/namespaces/{namespace}/{path}", json=policy).status_code == 204
    urls = ("--url", service_url, "--admin-url", admin_url)
    assert verify(*urls, "--namespace", namespace) == 2
    assert told in capsys.readouterr().err
    assert admin.delete(f"/namespaces/{namespace}").status_code == 204


# --- planted bugs


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with magnetar.embedded() as broker:
        yield broker


def outcome_of(
    broker: EmbeddedBroker,
    messages: int = 60,
    seed: int = 7,
    patiences_s: tuple[float, ...] = PATIENCES_S,
) -> Outcome:
    """Of a round that was judged."""
    target = ClusterTarget(broker.service_url, broker.web_url)
    for patience_s in patiences_s:
        settings = VerifySettings("public/default", seed, 0.0, messages, patience_s=patience_s)
        outcome = asyncio.run(run_rounds(target, settings, lambda _: None))
        if not outcome.unjudged:
            return outcome
    raise AssertionError(outcome.unjudged)


def violations_in(outcome: Outcome) -> list[Violation]:
    return [each for verdict in outcome.verdicts for each in verdict.violations]


def found_in_rounds(
    broker: EmbeddedBroker, wanted: Rule, messages: int = 60
) -> set[tuple[str, Rule]]:
    """Topics' and rules of violations, of as many rounds as show ``wanted``; of three at most.

    A bug may have no effect in a round on a machine that is busy with other things.
    """
    found = set[tuple[str, Rule]]()
    for seed in (7, 8, 9):
        found |= {
            (each.topic.rpartition("-")[2], each.rule)
            for each in violations_in(outcome_of(broker, messages, seed))
        }
        if wanted in {rule for _, rule in found}:
            break
    return found


def every(nth: int, bug: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A method that is another one at each nth call."""
    calls = itertools.count(1)

    def plant(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def planted(*arguments: Any) -> Any:
            return (bug(method) if next(calls) % nth == 0 else method)(*arguments)

        return planted

    return plant


def nothing(method: Callable[..., Any]) -> Callable[..., None]:
    return lambda *_: None


def done_already(method: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*_: Any) -> None: ...

    return call


def twice(method: Callable[..., Any]) -> Callable[..., None]:
    def call(*arguments: Any) -> None:
        method(*arguments)
        method(*arguments)

    return call


def forgotten(method: Callable[..., Any]) -> Callable[..., None]:
    """Of ``acknowledge``: it is confirmed, and not done."""

    def call(self: Any, consumer: Any, positions: Any, on_durable: Any = None) -> None:
        if on_durable is not None:
            on_durable(None)

    return call


def due(method: Callable[..., Any]) -> Callable[..., bool]:
    return lambda *_: True


def anybody(method: Callable[..., Any]) -> Callable[..., Any]:
    """Of ``_ready_owner``: whoever has most room."""

    def call(self: Any, slot: int) -> Any:
        ready = [each for each in self.consumers if each.available]
        return max(ready, key=lambda each: each.permits, default=None)

    return call


def forgetful(method: Callable[..., Any]) -> Callable[..., Any]:
    """Of ``sift``: it knows no sequence id of before."""

    def call(self: Any, *arguments: Any) -> Any:
        self._stored.clear()
        self._given.clear()
        return method(self, *arguments)

    return call


@pytest.mark.parametrize(
    ("where", "method", "bug", "nth", "rules"),
    [
        pytest.param(
            *(BinaryConsumerSink, "deliver", nothing, 7),
            {Rule.SKIPPED},
            id="an entry isn't delivered",
        ),
        pytest.param(
            *(BinaryConsumerSink, "deliver", twice, 7),
            {Rule.DELIVERED_TWICE, Rule.REORDERED},
            id="an entry is delivered twice",
        ),
        pytest.param(
            *(PersistentSubscription, "acknowledge", forgotten, 20),
            {Rule.DELIVERED_AFTER_ACK},
            id="an acknowledgement is forgotten",
        ),
        pytest.param(
            *(PersistentSubscription, "redeliver", nothing, 1),
            {Rule.NOT_REDELIVERED},
            id="a negative acknowledgement is forgotten",
        ),
        pytest.param(
            *(SequenceIds, "sift", forgetful, 1), {Rule.DUPLICATED}, id="duplicates are stored"
        ),
        pytest.param(
            *(KeySharedDispatcher, "_ready_owner", anybody, 1),
            {Rule.KEY_AT_TWO},
            id="keys go anywhere",
        ),
        pytest.param(*(DelayedIndex, "is_due", due, 1), {Rule.EARLY}, id="delays are forgotten"),
        pytest.param(
            *(TopicDirectory, "_copy_subscriptions", done_already, 1),
            {Rule.NOT_DELIVERED},
            id="an added partition has no subscriptions",
        ),
    ],
)
def test_a_planted_bug_is_found(
    broker: EmbeddedBroker,
    monkeypatch: pytest.MonkeyPatch,
    where: type,
    method: str,
    bug: Callable[..., Any],
    nth: int,
    rules: set[Rule],
) -> None:
    monkeypatch.setattr(where, method, every(nth, bug)(getattr(where, method)))
    found = {each.rule for each in violations_in(outcome_of(broker))}
    assert rules <= found


# --- planted bugs of what needs disturbances


def earlier(position: Position) -> Position:
    ledger_id, entry_id = position
    return ledger_id, max(0, entry_id - 3)


def reset_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    reset = PersistentSubscription.reset

    async def planted(self: Any, position: Position, ack_set: Any = ()) -> None:
        await reset(self, earlier(position), ack_set)

    monkeypatch.setattr(PersistentSubscription, "reset", planted)


def reset_by_time_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    reset = PersistentSubscription.reset_to_time

    async def planted(self: Any, publish_time_ms: int) -> None:
        await reset(self, publish_time_ms + 100)

    monkeypatch.setattr(PersistentSubscription, "reset_to_time", planted)


def begin_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    async def planted(ledger: Any, request: Any, now_ms: int) -> Position:
        start = await start_position(ledger, request, now_ms)
        return start if request.durable else earlier(start)

    monkeypatch.setattr("magnetar.broker.topic.persistent_topic.start_position", planted)


def forget_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AckState, "batch_ack_set", lambda *_: None)


def tell_not_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Consumers end with their topic, and every third client isn't told."""
    close = BinaryConsumerSink.close_consumer
    monkeypatch.setattr(BinaryConsumerSink, "close_consumer", every(3, nothing)(close))


def sought(check: TopicCheck) -> int:
    """Seeks that were certainly done, and not to the first entry of a ledger."""
    return sum(
        isinstance(each, Sought) and each.sure and (each.entry is None or each.entry[1] > 0)
        for subscription in check.history.subscriptions
        for each in subscription.events
    )


def read(check: TopicCheck) -> int:
    return sum(each.start[1] > 0 and bool(each.read) for each in check.history.readers)


def closed_with_parts(check: TopicCheck) -> int:
    """Consumers that left after a part of a batch was acknowledged, and its rest wasn't."""
    count = 0
    for subscription in check.history.subscriptions:
        parts: dict[Any, int] = {}  # of entries, by who acknowledged
        for each in subscription.events:
            if isinstance(each, AckAsked):
                entries = {position[:-1] for position in each.positions}
                parts = {at: one for at, one in parts.items() if at not in entries}
                parts |= dict.fromkeys(entries, each.session) if each.partial else {}
            elif isinstance(each, Ended) and each.why is End.CLOSED:
                count += each.session in parts.values()
    return count


def unloaded(check: TopicCheck) -> int:
    return check.disturbances.get("topic unloaded", 0)


DONE_MIN = 3


@pytest.mark.parametrize(
    ("plant", "way", "done", "rule"),
    [
        (reset_too_early, "seek by message id", sought, Rule.WRONG_PLACE),
        (reset_by_time_too_late, "seek by time", sought, Rule.NOT_DELIVERED),
        (begin_too_early, "reader from a message id", read, Rule.WRONG_PLACE),
        (forget_parts, "consumer closed", closed_with_parts, Rule.DELIVERED_AFTER_ACK),
        # The judge waits a minute for each consumer that wasn't told.
        *([(tell_not_everybody, "topic unloaded", unloaded, Rule.NOT_TOLD)] if NIGHTLY else []),
    ],
)
def test_a_planted_bug_that_disturbances_show_is_found(
    broker: EmbeddedBroker,
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[pytest.MonkeyPatch], None],
    way: str,
    done: Callable[[TopicCheck], int],
    rule: Rule,
) -> None:
    """Each disturbed often, and by nothing else, until that has had its effect a few times."""
    all_ways = TopicCheck._ways

    def few_ways(self: TopicCheck) -> dict[str, Any]:
        known = all_ways(self)  # a topic with chunked messages has no seeks and readers
        return {way: known[way]} if way in known else known

    def groups_until_done(check: TopicCheck, count: int) -> Iterator[Group]:
        chunked, rng = check._plan.chunked, random.Random(check._rng.random())
        for group in draw_groups(20 * count, rng, chunked=chunked):
            if group.first >= count and (chunked or done(check) >= DONE_MIN):
                return
            yield group

    async def send_until_done(self: TopicCheck, sender: Sender, count: int) -> None:
        await sender.send_all(groups_until_done(self, count), 0.01)

    monkeypatch.setattr(TopicCheck, "_ways", few_ways)
    monkeypatch.setattr(TopicCheck, "_send", send_until_done)
    monkeypatch.setattr(topic_check, "_DISTURB_S", (0.03, 0.06))
    assert violations_in(outcome_of(broker, 200, patiences_s=PATIENCES_S[-1:])) == []
    plant(monkeypatch)
    found = {each for _, each in found_in_rounds(broker, rule, 200)}
    assert rule in found
    if rule is Rule.NOT_TOLD:
        assert found == {rule}  # what follows from it isn't told as another fault


@pytest.mark.parametrize(
    ("bug", "rules"),
    [
        (twice, {Rule.DELIVERED_TWICE}),
        (nothing, {Rule.NOT_DELIVERED}),
    ],
    ids=["twice", "not at all"],
)
def test_a_bug_of_non_persistent_topics_is_found(
    broker: EmbeddedBroker,
    monkeypatch: pytest.MonkeyPatch,
    bug: Callable[..., Any],
    rules: set[Rule],
) -> None:
    """No message is delivered, or each twice, and nothing is wrong elsewhere."""
    deliver = BinaryConsumerSink.deliver

    def planted(self: Any, consumer: Any, *others: Any) -> None:
        stored = isinstance(consumer.subscription, PersistentSubscription)
        (deliver if stored else bug(deliver))(self, consumer, *others)

    monkeypatch.setattr(BinaryConsumerSink, "deliver", planted)
    found = violations_in(outcome_of(broker))
    assert {each.rule for each in found} == rules
    assert all(each.topic.startswith("non-persistent:") for each in found)


def test_a_bug_of_chunks_is_found_in_chunked_messages_alone(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk in every fifth place of the log is never delivered, other than to the last reader."""
    deliver = BinaryConsumerSink.deliver

    def planted(
        self: Any, consumer: Any, batch: Any, picks: Any, counts: Any, ack_sets: Any
    ) -> None:
        wanted = range(len(batch.bodies)) if picks is None else picks
        kept = [
            (nth, count)
            for nth, count in zip(wanted, counts or itertools.repeat(0), strict=False)
            if consumer.subscription.name == SUBSCRIPTION
            or (batch.first + nth) % 5
            or not is_chunk(open_entry(batch.bodies[nth])[0])
        ]
        if kept:
            picks, counts = zip(*kept, strict=True)
            deliver(self, consumer, batch, picks, counts, ack_sets)

    monkeypatch.setattr(BinaryConsumerSink, "deliver", planted)
    found = found_in_rounds(broker, Rule.SKIPPED)
    assert ("chunked", Rule.SKIPPED) in found
    assert {topic for topic, _ in found} == {"chunked"}
