"""The outcome of `magnetar verify` as a page: one file, without scripts and without other files."""

from collections.abc import Iterable, Iterator
from html import escape
from typing import Final

from magnetar.broker.cli.verify.outcome import (
    broken_promises,
    conclusion,
    place_of,
    started,
    totals,
    verdict_of,
    violations_of,
)
from magnetar.broker.cli.verify.run import Outcome
from magnetar.broker.dispatch.explanation import counted
from magnetar.broker.verify.history import PROMISES, Violation

VIOLATIONS_MAX: Final = 500
"""What a phone can show."""
_STYLE: Final = """
:root { color-scheme: light dark; --text: #1b1f24; --back: #fff; --line: #d5dae0; --soft: #57606a;
  --good: #116329; --bad: #a40e26; --unsure: #7d4e00; --card: #f6f8fa; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --back: #0d1117; --line: #30363d;
  --soft: #9aa4af; --good: #56d364; --bad: #ff8178; --unsure: #e3b341; --card: #161b22; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 60rem; padding: 1rem; color: var(--text);
  background: var(--back); font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.clean { color: var(--good); } .violated { color: var(--bad); } .unknown { color: var(--unsure); }
.verdict { font-size: 1.2rem; font-weight: 600; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .3rem .5rem .3rem 0;
  border-bottom: 1px solid var(--line); }
th { font-weight: 600; } th, td.state { overflow-wrap: normal; }
td.state, td.number { text-align: right; white-space: nowrap; }
.soft { color: var(--soft); }
details { background: var(--card); border: 1px solid var(--line); border-radius: .4rem;
  margin: .5rem 0; padding: .5rem .75rem; }
summary { cursor: pointer; } ol { padding-left: 1.5rem; }
"""


def page_of(outcome: Outcome) -> str:
    """HTML. Everything that came from the cluster is escaped."""
    verdict = verdict_of(outcome)
    parts = (
        f"<p class='verdict {verdict}'>{escape(conclusion(outcome))}</p>",
        _facts(outcome),
        "<h2>Promises</h2>",
        _promises(outcome),
        *_violations(list(violations_of(outcome))),
        "<h2>Topics</h2>",
        _topics(outcome),
    )
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        "<meta http-equiv='Content-Security-Policy' "
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>magnetar verify: {verdict}</title><style>{_STYLE}</style></head>"
        f"<body><main><h1>magnetar verify</h1>{''.join(parts)}</main></body></html>\n"
    )


def _facts(outcome: Outcome) -> str:
    counts = totals(outcome)
    rows: list[tuple[str, str]] = [
        ("Cluster", outcome.service_url),
        ("Namespace", outcome.settings.namespace),
        ("Started", started(outcome)),
        ("Seed", str(outcome.settings.seed)),
        ("Messages of each topic in a round", str(outcome.settings.messages)),
        ("Sent", str(counts["sent"])),
        ("Stored", f"{counts['stored']}, {counts['repeated']} of them because sent again"),
        ("Delivered", f"{counts['delivered']}, {counts['redelivered']} of them again"),
        ("Read by readers", str(counts["read"])),
        ("Lost by non-persistent topics, as they may be", str(counts["missed"])),
    ]
    rows += [
        (f"Disturbed: {what}", counted(n, "time"))
        for what, n in sorted(outcome.disturbances.items())
    ]
    rows += [("Not checked", text) for text in outcome.unchecked]
    rows += [("Waited", text) for text in outcome.waits]
    return _table((), rows)


def _promises(outcome: Outcome) -> str:
    broken = broken_promises(outcome)
    rows = []
    for rule, text in PROMISES.items():
        count = broken[rule.value]
        state = (
            f"<span class='violated'>broken {counted(count, 'time')}</span>" if count else "kept"
        )
        if not count and outcome.unjudged:
            state = "<span class='unknown'>not known</span>"
        rows.append(
            f"<tr><td><b>{escape(rule)}</b><br>{escape(text)}</td>"
            f"<td class='state'>{state}</td></tr>"
        )
    return f"<table>{''.join(rows)}</table>"


def _violations(violations: list[Violation]) -> Iterator[str]:
    if not violations:
        return
    yield f"<h2>Violations ({len(violations)})</h2>"
    for each in violations[:VIOLATIONS_MAX]:
        story = "".join(f"<li>{escape(line)}</li>" for line in each.story)
        yield (
            f"<details><summary><b class='violated'>{escape(each.rule)}</b> {escape(each.text)}"
            f"<br><span class='soft'>{escape(place_of(each))}</span></summary>"
            f"<p>{escape(PROMISES[each.rule])}</p><ol>{story}</ol></details>"
        )
    if len(violations) > VIOLATIONS_MAX:
        yield f"<p class='soft'>and {len(violations) - VIOLATIONS_MAX} more</p>"


def _topics(outcome: Outcome) -> str:
    rows = [
        (each.topic, each.sent, each.stored, each.delivered, len(each.violations))
        for each in outcome.verdicts
    ]
    return _table(("Topic or partition", "sent", "stored", "delivered", "violations"), rows)


def _table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    titles = "".join(f"<th>{escape(title)}</th>" for title in head)
    lines = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table>{f'<tr>{titles}</tr>' if titles else ''}{lines}</table>"


def _cell(value: object) -> str:
    kind = " class='number'" if isinstance(value, int) else ""
    return f"<td{kind}>{escape(str(value))}</td>"
