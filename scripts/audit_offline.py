"""Pinned dependencies against a copy of the Python advisory database: `make audit DATABASE=DIR`.

For machines without an open network: DIR is a checkout of pypa/advisory-database, whose files
(``vulns/<package>/<id>.yaml``) have the form of OSV (https://ossf.github.io/osv-schema).
A copy is as good as it is new, so the age of its newest entry is part of the answer.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any, Final

import yaml
from packaging.utils import canonicalize_name
from packaging.version import Version

_ORDER: Final = {"introduced": 0, "last_affected": 1, "fixed": 2}


@dataclass(frozen=True)
class Finding:
    """One advisory that a pinned version falls under."""

    package: str
    version: str
    advisory: str
    summary: str


def pins(constraints: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Name and version of each line ``name==version``; raises ValueError for any other line."""
    for raw in constraints:
        line = raw.partition("#")[0].strip()
        if not line:
            continue
        name, equals, version = line.partition("==")
        if not equals:
            raise ValueError(f"not a pin: {line!r}")
        yield canonicalize_name(name.strip()), version.strip()


def is_affected(version: str, affected: Mapping[str, Any]) -> bool:
    """Whether one ``affected`` object of an advisory holds for a version."""
    wanted = Version(version)
    if any(_same(wanted, listed) for listed in affected.get("versions", ())):
        return True
    return any(
        _in_range(wanted, found["events"])
        for found in affected.get("ranges", ())
        if found["type"] == "ECOSYSTEM"
    )


def _same(wanted: Version, listed: str) -> bool:
    try:
        return Version(listed) == wanted
    except ValueError:  # versions older than the rules for versions
        return False


def _in_range(wanted: Version, events: Iterable[Mapping[str, str]]) -> bool:
    steps = [
        (Version(text), _ORDER[kind], kind)
        for event in events
        for kind, text in event.items()
        if kind in _ORDER
    ]
    inside = False
    for version, _, kind in sorted(steps):
        if kind == "introduced":
            inside = inside or version <= wanted
        elif kind == "last_affected":
            inside = inside and wanted <= version
        else:
            inside = inside and wanted < version
    return inside


def audit(constraints: Iterable[str], database: Path) -> tuple[list[Finding], int, date]:
    """What is known of the pins: findings, advisories looked at, day of the newest of the database.

    Raises:
        FileNotFoundError: that is not a copy of the database.
        ValueError: a line is not a pin, or an advisory can't be read.
    """
    folder = database / "vulns"
    if not folder.is_dir():
        raise FileNotFoundError(f"{database} has no folder vulns: not the advisory database")
    findings, looked_at = [], 0
    for name, version in pins(constraints):
        for path in sorted((folder / name).glob("*.yaml")):
            looked_at += 1
            advisory = yaml.safe_load(path.read_text("utf-8"))
            try:
                matches = any(
                    canonicalize_name(affected["package"]["name"]) == name
                    and is_affected(version, affected)
                    for affected in advisory["affected"]
                )
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{path}: {error!r}") from error
            if matches and "withdrawn" not in advisory:
                summary = " ".join(str(advisory.get("details", "")).split())[:120]
                findings.append(Finding(name, version, advisory["id"], summary))
    return findings, looked_at, _newest(folder)


def _newest(folder: Path) -> date:
    """By the ``published`` lines; files are only searched, reading all of them takes a minute."""
    newest = date.min
    for path in folder.glob("*/*.yaml"):
        for line in path.read_text("utf-8").splitlines():
            if line.startswith("published:"):
                text = line.partition(":")[2].strip().strip("\"'").replace("Z", "+00:00")
                newest = max(newest, datetime.fromisoformat(text).date())
    return newest


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("database", type=Path, help="checkout of the advisory database")
    parser.add_argument("--constraints", type=Path, default=Path("constraints.txt"))
    arguments = parser.parse_args()
    lines = arguments.constraints.read_text("utf-8").splitlines()
    findings, looked_at, newest = audit(lines, arguments.database)
    for finding in findings:
        print(f"{finding.package}=={finding.version}: {finding.advisory}: {finding.summary}")
    print(
        f"{len(list(pins(lines)))} pins, {looked_at} advisories about them, {len(findings)} of "
        f"them hold; the newest advisory of this database is of {newest}"
    )
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
