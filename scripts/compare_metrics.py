#!/usr/bin/env python3
"""Compare a metrics page with the list of Pulsar's series, scripts/metrics_of_pulsar.txt.

    scripts/compare_metrics.py http://127.0.0.1:8080 [http://127.0.0.1:8081]

The first is a Pulsar: every series that it shows must be in the list. The second is Magnetar: what
the list calls ours must be there, what it calls absent must not, and series of both must have the
labels of Pulsar's. Let clients produce and consume on both before. Prints one line a difference;
exit code 1 when there is one. Standard library only.
"""

import re
import sys
import urllib.request
from pathlib import Path

LIST = Path(__file__).with_name("metrics_of_pulsar.txt")
_SERIES = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})? \S+$")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="(?:[^"\\]|\\.)*"')


def read_list() -> dict[str, str]:
    """Section by series name."""
    sections: dict[str, str] = {}
    section = ""
    for line in LIST.read_text().splitlines():
        if line.startswith("["):
            section = line[1:-1]
        elif line and not line.startswith("#"):
            if line in sections:
                raise ValueError(f"{line} is listed twice")
            sections[line] = section
    return sections


def series_of(page: str) -> dict[str, set[frozenset[str]]]:
    """The label sets, without values, that each series name has on a page."""
    found: dict[str, set[frozenset[str]]] = {}
    for line in page.splitlines():
        if (match := _SERIES.match(line)) is not None:
            labels = frozenset(_LABEL.findall(match[2] or ""))
            found.setdefault(match[1], set()).add(labels)
    return found


def unlisted(page: str) -> list[str]:
    """Names on a page that the list doesn't have."""
    return sorted(series_of(page).keys() - read_list().keys())


def differences(page: str) -> list[str]:
    """Where our page and the list disagree."""
    found, sections = series_of(page), read_list()
    lines = [f"{name}: not in the list" for name in unlisted(page)]
    for name, section in sections.items():
        if section.startswith("absent") and name in found:
            lines.append(f"{name}: on the page, but listed as {section}")
        elif section == "ours" and name not in found:
            lines.append(f"{name}: listed as ours, but not on the page")
    return lines


def label_differences(theirs: str, ours: str) -> list[str]:
    """Series of both pages whose labels there are never those here."""
    their_series, our_series = series_of(theirs), series_of(ours)
    return [
        f"{name}: labels {sorted(map(sorted, their_series[name]))}"
        f" there, {sorted(map(sorted, our_series[name]))} here"
        for name in sorted(their_series.keys() & our_series.keys())
        if not their_series[name] & our_series[name]
    ]


def fetch(url: str) -> str:
    with urllib.request.urlopen(f"{url}/metrics/", timeout=60) as answer:
        text: str = answer.read().decode()
    return text


def main(urls: list[str]) -> int:
    if len(urls) not in (1, 2):
        print(__doc__)
        return 2
    theirs = fetch(urls[0])
    lines = [f"{name}: Pulsar shows it, the list lacks it" for name in unlisted(theirs)]
    if len(urls) == 2:
        ours = fetch(urls[1])
        lines += differences(ours) + label_differences(theirs, ours)
    print("\n".join(lines) or "no differences")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
