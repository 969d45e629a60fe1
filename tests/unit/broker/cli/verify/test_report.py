"""The outcome of `magnetar verify` on a terminal, as JSON and as a page."""

import json
import re
from html.parser import HTMLParser

import pytest

from magnetar.broker.cli.verify.outcome import as_json, as_text, of_rounds
from magnetar.broker.cli.verify.report import page_of
from magnetar.broker.cli.verify.run import Outcome, VerifySettings
from magnetar.broker.verify.history import PROMISES, Rule, Violation
from magnetar.broker.verify.verdict import TopicVerdict

HOSTILE = "<script src=//evil></script>'\"&"


@pytest.fixture
def outcome() -> Outcome:
    settings = VerifySettings("public/default", 7, 30.0, 1000)
    outcome = Outcome(settings, "pulsar://localhost:6650", 1_795_857_092.0, rounds=3, seconds=31.2)
    outcome.verdicts = [TopicVerdict("t", sent=10, stored=11, repeated=1, delivered=44)]
    outcome.disturbances["topic unloaded"] = 2
    return outcome


@pytest.fixture
def violated(outcome: Outcome) -> Outcome:
    violation = Violation(Rule.LOST, HOSTILE, (1, 2, -1), ("p", 3), f"t{HOSTILE}", story=[HOSTILE])
    outcome.verdicts[0].violations = [violation] * 12
    outcome.unchecked, outcome.waits = [HOSTILE], [HOSTILE]
    return outcome


class Tags(HTMLParser):
    """``names``, ``attributes`` as pairs, and whether each element that must be closed was."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_page_stands_alone_and_shows_what_was_broken(violated: Outcome) -> None:
    page = page_of(violated)
    tags = Tags(page)
    assert tags.open == []
    assert {"script", "link", "img", "iframe", "form", "a"}.isdisjoint(tags.names)
    assert {"src", "href", "style", "onclick"}.isdisjoint(name for name, _ in tags.attributes)
    assert re.findall(r"url\(|@import", page) == []
    assert HOSTILE not in page
    assert page.count("&lt;script src=//evil&gt;") == 12 * 3 + 2  # text, place, story; others
    assert ("name", "viewport") in tags.attributes
    assert "prefers-color-scheme: dark" in page
    assert "broken 12 times" in page


def test_a_clean_page_lists_each_promise(outcome: Outcome) -> None:
    page = page_of(outcome)
    assert "Clean: every promise was kept (3 rounds in 31 s, seed 7)." in page
    assert all(f"<b>{rule}</b>" in page for rule in PROMISES)
    assert page.count(">kept<") == len(PROMISES)


def test_what_is_unknown_is_no_promise_kept(outcome: Outcome) -> None:
    outcome.unjudged = "t: no receipt within 60 s"
    page = page_of(outcome)
    assert "Nobody can say: t: no receipt within 60 s" in page
    assert ">kept<" not in page
    assert as_json(outcome)["verdict"] == "unknown"
    assert of_rounds(outcome) == "round 3, 31 s: nobody can say"


def test_a_round_is_clean_or_says_how_often_it_was_not(outcome: Outcome) -> None:
    assert of_rounds(outcome) == "round 3, 31 s: clean"
    outcome.verdicts[0].violations = [Violation(Rule.LOST, "p 1")]
    assert of_rounds(outcome) == "round 3, 31 s: 1 violation"


def test_a_terminal_shows_some_violations_and_counts_all(violated: Outcome) -> None:
    text = "\n".join(as_text(violated))
    assert text.count("lost: ") == 10
    assert "and 2 more" in text
    assert "broken 12 times: lost" in text
    assert "Violated: 12 times" in text


def test_what_is_sent_and_not_to_be_stored_is_told(outcome: Outcome) -> None:
    outcome.verdicts = [
        TopicVerdict("persistent://public/default/a", sent=900, stored=900),
        TopicVerdict("non-persistent://public/default/b", sent=1_200),
    ]
    first = next(as_text(outcome))
    assert first.startswith("2,100 messages sent (1,200 of them to non-persistent topics), 900 ")


def test_json_has_everything(violated: Outcome) -> None:
    told = json.loads(json.dumps(as_json(violated)))
    assert told["verdict"] == "violated"
    assert told["promises"] == {rule: 12 if rule == "lost" else 0 for rule in PROMISES}
    assert told["totals"]["repeated"] == 1
    assert len(told["topics"][0]["violations"]) == 12
