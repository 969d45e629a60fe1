"""The core of a coordinator; crashes and failures are in tests/simulation."""

import sys

from magnetar.broker.errors import BrokerError, NotAllowedError, TransactionNotFoundError
from magnetar.broker.transaction.coordinator import (
    ENDING_MAX,
    IN_FLIGHT_MAX,
    NAME_CHARACTERS_MAX,
    RETRY_MS,
    SEQUENCES_AHEAD,
    TIMEOUTS_A_TURN,
    Answer,
    AppendEntry,
    Coordinator,
    Effect,
    EndParticipants,
)
from magnetar.broker.transaction.coordinator_records import encode_group, entry_records, in_groups
from magnetar.broker.transaction.transaction_deadlines import TransactionDeadlines
from magnetar.broker.transaction.transaction_id import TransactionId


class Log:
    """Stores at once whatever a coordinator appends."""

    def __init__(self, core: Coordinator) -> None:
        self.core = core
        self.entries: list[bytes] = []
        self.answers: dict[object, TransactionId | BrokerError] = {}
        self.ends: list[EndParticipants] = []

    def run(self) -> None:
        while effects := self.core.take_effects():
            for effect in effects:
                match effect:
                    case AppendEntry(entry, _):
                        self.entries.append(entry)
                        self.core.on_appended((0, len(self.entries) - 1))
                    case Answer(request, result):
                        self.answers[request] = result
                    case EndParticipants():
                        self.ends.append(effect)


def test_only_the_owner_and_who_may_all_use_a_transaction() -> None:
    core = Coordinator(3)
    log = Log(core)
    core.new("new", 0, 1000, "ada")
    core.add_partitions("eve's", 0, ["t"], "eve")
    core.add_partitions("ada's", 0, ["t"], "ada")
    core.end("eve's end", 0, commits=True, caller="eve")
    core.end("superuser's", 0, commits=True)
    log.run()
    core.on_participants_done(0)
    log.run()
    refused = [name for name, each in log.answers.items() if isinstance(each, NotAllowedError)]
    assert refused == ["eve's", "eve's end"]
    assert log.answers["superuser's"] == TransactionId(3, 0)
    assert log.ends[0].partitions == ("t",)


def test_names_of_a_transaction_are_bounded() -> None:
    """Records of the log have all of them, and must fit into an entry."""
    core = Coordinator(0)
    log = Log(core)
    core.new("new", 0, 1000)
    half = "x" * (NAME_CHARACTERS_MAX // 2)
    core.add_partitions("half", 0, [half])
    core.add_partitions("again", 0, [half])
    core.add_subscriptions("above", 0, [(half, "s")])
    core.add_subscriptions("the rest", 0, [(half[1:], "s")])
    log.run()
    replayed = Coordinator(0)
    for number, entry in enumerate(log.entries):
        replayed.replay(entry, (0, number))
    replayed.start()
    replayed.add_partitions("one more", 0, ["t"])
    answers = log.answers | {each.request: each.result for each in _answers(replayed)}
    refused = [name for name, each in answers.items() if isinstance(each, NotAllowedError)]
    assert refused == ["above", "one more"]


def _answers(core: Coordinator) -> list[Answer]:
    return [each for each in core.take_effects() if isinstance(each, Answer)]


def test_above_the_limit_there_is_no_answer_until_one_ends() -> None:
    core = Coordinator(0, open_max=1)
    log = Log(core)
    core.new("first", 0, 1000)
    core.new("second", 0, 1000)
    core.end("end", 0, commits=False)
    log.run()
    core.new("third", 0, 1000)
    log.run()
    assert log.answers == {"first": (0, 0), "end": (0, 0), "third": (0, 1)}
    assert (core.metrics.created, core.metrics.refused) == (2, 1)


def test_only_additions_and_decisions_wait_for_the_log() -> None:
    """What a client waits for, one after the other, beside the participants."""
    core = Coordinator(0)
    log = Log(core)
    core.new("first", 0, 1000)
    assert _may_wait(core.take_effects()) == [False]
    core.on_appended((0, 0))
    log.run()
    core.new("new", 0, 1000)
    answer, append = core.take_effects()
    assert (answer, _may_wait([append])) == (Answer("new", TransactionId(0, 1)), [True])
    core.on_appended((0, 1))
    core.add_partitions("add", 1, ["t"])
    assert _may_wait(core.take_effects()) == [False]
    core.on_appended((0, 2))
    assert core.take_effects() == [Answer("add", TransactionId(0, 1))]
    core.end("end", 1, commits=True)
    assert _may_wait(core.take_effects()) == [False]
    core.on_appended((0, 3))
    assert [type(each) for each in core.take_effects()] == [EndParticipants]
    core.on_participants_done(1)
    answer, append = core.take_effects()
    assert (answer, _may_wait([append])) == (Answer("end", TransactionId(0, 1)), [True])


def _may_wait(effects: list[Effect]) -> list[bool]:
    return [each.may_wait for each in effects if isinstance(each, AppendEntry)]


def test_a_replay_of_another_owner_s_log_tells_what_is_open_and_for_how_long() -> None:
    core = Coordinator(0)
    log = Log(core)
    for _ in range(3):
        core.new("", 500, 1000)
    core.end("", 1, commits=True)
    log.run()
    replayed = Coordinator(0)
    for number, entry in enumerate(log.entries):
        replayed.replay(entry, (0, number))
    replayed.start()
    assert len(replayed) == 2
    due_ms = replayed.next_deadline_ms()
    assert due_ms is not None
    assert 1500 <= due_ms < 1500 + 64
    log = Log(replayed)
    replayed.end("ended", 1, commits=True)
    replayed.new("next", 600, 1000)
    log.run()
    assert isinstance(log.answers["ended"], TransactionNotFoundError)
    assert log.answers["next"] == (0, SEQUENCES_AHEAD)  # none of them is given twice


def test_entries_that_are_appended_together_are_one_of_bounded_size() -> None:
    core = Coordinator(0)
    for _ in range(3):
        core.new("", 0, 1000)
    core.add_partitions("", 2, ["x" * (1 << 16)])
    core.add_partitions("", 1, ["t"])
    entries = [each.entry for each in core.take_effects() if isinstance(each, AppendEntry)]
    entries.append(encode_group([entries[0]] * 2))
    groups = list(in_groups(entries))
    assert [count for _, count in groups] == [4, 2]
    records = [record for entry in entries for record in entry_records(entry)]
    assert [each for entry, _ in groups for each in entry_records(entry)] == records
    for at, (_, count) in enumerate(groups[:1]):
        core.on_appended((0, at), count)
    assert len(_answers(core)) == 4
    replayed = Coordinator(0)
    replayed.replay(groups[0][0], (0, 0))
    replayed.start()
    assert (len(replayed), replayed.low_watermark()) == (3, -1)  # the first group has several


def test_times_may_be_negative_and_are_stored_as_java_writes_them() -> None:
    core = Coordinator(0)
    log = Log(core)
    core.new("", 500, -5)
    log.run()
    assert entry_records(log.entries[0])[0].timeoutMs == (1 << 64) - 5
    core.end("late", 0, commits=True)
    log.run()
    assert isinstance(log.answers["late"], TransactionNotFoundError)  # aborted at once
    replayed = Coordinator(0)
    replayed.replay(log.entries[0], (0, 0))
    replayed.start()
    replayed.on_tick(512)
    assert replayed.next_deadline_ms() is None


def test_many_time_outs_are_taken_in_turns_and_wait_for_the_log() -> None:
    core = Coordinator(0)
    log = Log(core)
    for _ in range(5 * TIMEOUTS_A_TURN):
        core.new("", 0, 1000)
    log.run()
    core.on_tick(2000)
    assert len(core.take_effects()) == TIMEOUTS_A_TURN
    core.on_tick(2000)
    core.on_tick(2000)
    assert len(core.take_effects()) == IN_FLIGHT_MAX - TIMEOUTS_A_TURN
    assert core.next_deadline_ms() is None
    for _ in range(IN_FLIGHT_MAX):
        core.on_appended((0, len(log.entries)))
    assert len(core) == 5 * TIMEOUTS_A_TURN - IN_FLIGHT_MAX
    log.run()
    assert core.next_deadline_ms() is not None


def test_participants_that_fail_are_asked_again_later_and_hold_up_nobody() -> None:
    core = Coordinator(0)
    log = Log(core)
    for sequence in range(3 * ENDING_MAX):
        core.new("", 0, 1000)
        core.add_partitions("", sequence, ["t"])
    log.run()
    asked, now_ms = set[int](), 2000
    while len(asked) < 3 * ENDING_MAX:
        while (due_ms := core.next_deadline_ms()) is not None and due_ms <= now_ms:
            core.on_tick(now_ms)
            log.run()
        ends, log.ends = log.ends, []
        assert len(ends) == ENDING_MAX
        assert asked.isdisjoint(each.transaction.least for each in ends), "before its turn"
        for each in ends:
            asked.add(each.transaction.least)
            assert core.on_participants_failed(each.transaction.least, now_ms) == 1
    assert core.metrics.stuck == len(asked)
    due_ms = core.next_deadline_ms()
    assert due_ms is not None
    assert now_ms + RETRY_MS <= due_ms < now_ms + RETRY_MS + 64
    core.on_tick(due_ms)
    log.run()
    again = log.ends[0].transaction.least
    core.on_participants_failed(again, due_ms)
    core.end("answer", again, commits=False)
    core.on_tick(due_ms + 2 * RETRY_MS - 64)
    log.run()
    assert "answer" not in log.answers
    assert again not in {each.transaction.least for each in log.ends[1:]}, "not less often"


def test_beginnings_and_failures_take_no_longer_with_many_open_ones() -> None:
    """A million of them held the loop for a second."""
    core = Coordinator(0)
    log = Log(core)
    for _ in range(1000):
        core.new("", 0, 1000)
    log.run()
    replayed = Coordinator(0)
    for number, entry in enumerate(log.entries):
        replayed.replay(entry, (0, number))
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    replayed.start()
    replayed.next_deadline_ms()
    replayed.fail(NotAllowedError("closed"))
    replayed.drop(10)
    sys.setprofile(None)
    assert calls < 100
    assert len(replayed) == 990


def test_deadlines_of_what_has_ended_take_no_room() -> None:
    deadlines = TransactionDeadlines()
    for sequence in range(50_000):
        deadlines.add(sequence, sequence * 100)
        if sequence:
            deadlines.remove(sequence, sequence * 100)
    assert len(deadlines._steps) < 3000
    assert deadlines.take(10_000_000, 10) == [0]
    assert deadlines.next_ms() is None


def test_names_are_kept_once_and_in_order_however_many_they_are() -> None:
    core = Coordinator(0)
    log = Log(core)
    core.new("new", 0, 1000)
    for number in [*range(20), *range(20)]:
        core.add_partitions("", 0, [f"t{number}", f"t{number // 2}"])
        core.add_subscriptions("", 0, [(f"t{number}", "s")])
    core.end("end", 0, commits=True)
    log.run()
    names = list(
        dict.fromkeys(f"t{each}" for number in range(20) for each in (number, number // 2))
    )
    assert log.ends[0].partitions == tuple(names)
    assert log.ends[0].subscriptions == tuple((f"t{number}", "s") for number in range(20))
