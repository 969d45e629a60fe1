"""Pages are in plain English: short sentences, short table rows, no words that send readers off.

``NOT_YET`` lists pages that were written before and wait for their turn: it may only shrink. A page
that has become good must leave it.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
WORDS_MAX = 32  # of a sentence
ROW_MAX = 300  # characters of a table's row, code aside
BANNED = re.compile(
    r"\b(whoever|whosoever|whomever|wherefore|thereof|hereby|therein|heretofore|lest|henceforth"
    r"|doors?|doorsteps?|gossip|guests?|heirs?|lanes?|strangers?|sweepers?|twins?|burial|corpse"
    r"|utilize[sd]?|leverage[sd]?|seamless(ly)?|blazing(ly)?|simply|obviously|of course)\b",
    re.IGNORECASE,
)
# Sentences that begin with their relative clause: the reader gets the subject last.
RIDDLE = re.compile(r"^(What|Who|Whom)\b[^?]*$")
_PRODUCT = (
    *("bookkeeper", "broker", "bundles", "loadbalance", "magnetar", "managed_ledger"),
    *("metadata", "pipeline"),
)
GENERATED = {"docs/reference/rest.md", "docs/reference/settings.md"}
GENERATED_PART = "<!-- written by scripts/reference_pages.py from the parsers -->"
NOT_YET: frozenset[str] = frozenset()

_FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`\[*])")


def pages() -> list[str]:
    found = [p for p in ROOT.glob("*.md") if p.is_file()]
    folders = ("benchmarks", "charts", "docs", "examples")
    found += [p for folder in folders for p in (ROOT / folder).rglob("*.md")]
    packages = {p.parent / "README.md" for f in _PRODUCT for p in (ROOT / f).rglob("*.py")}
    found += [p for p in packages if p.is_file()]
    return sorted(str(p.relative_to(ROOT)) for p in found)


def _plain(text: str) -> str:
    """Code counts as one word, an address as none."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"`[^`]*`", "`code`", text)


def _paragraphs(text: str) -> Iterator[str]:
    """Texts between blank lines and items of lists; no tables, headings or code."""
    part: list[str] = []
    for line in [*_FENCE.sub("", text).splitlines(), ""]:
        stripped = line.strip()
        is_item = re.match(r"([-*]|\d+\.) ", stripped) is not None
        if (not stripped or is_item or stripped.startswith(("|", "#", "<!--"))) and part:
            yield " ".join(part)
            part = []
        if stripped and not stripped.startswith(("|", "#", "<!--", ">")):
            part.append(re.sub(r"^([-*]|\d+\.) ", "", stripped))


def complaints(text: str) -> Iterator[str]:
    for paragraph in _paragraphs(text):
        for sentence in _END.split(_plain(paragraph)):
            if len(sentence.split()) > WORDS_MAX:
                yield f"{len(sentence.split())} words: {sentence}"
            if RIDDLE.match(sentence) and sentence.endswith("."):
                yield f"begins with its relative clause: {sentence}"
    for line in _FENCE.sub("", text).splitlines():
        if line.startswith("|") and len(plain := _plain(line)) > ROW_MAX:
            yield f"row of {len(plain)} characters: {line[:80]}"
        if found := BANNED.search(_plain(line)):
            yield f"{found[0]}: {line[:80]}"


@pytest.mark.parametrize("page", [page for page in pages() if page not in GENERATED])
def test_a_page_is_plain(page: str) -> None:
    found = list(complaints((ROOT / page).read_text().partition(GENERATED_PART)[0]))
    if page in NOT_YET:
        assert found, f"{page} is plain now: take it out of NOT_YET"
    else:
        assert found == []


def test_the_list_of_pages_that_wait_names_pages() -> None:
    assert sorted(NOT_YET - set(pages())) == []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("Whoever reads this is lost.", "Whoever"),
        ("What isn't there isn't read.", "relative clause"),
        (" ".join(["word"] * 33) + ".", "33 words"),
        (f"| {'x' * 330} |", "row of"),
        ("It works. `Whoever` is code. What is it?", ""),
    ],
)
def test_what_is_found(text: str, complaint: str) -> None:
    found = list(complaints(text))
    assert (len(found) == 1 and complaint in found[0]) if complaint else found == []
