"""`make audit DATABASE=DIR` finds what a copy of the advisory database knows, and nothing else."""

from datetime import date
from pathlib import Path

import pytest
from audit_offline import audit, is_affected, pins

_ADVISORY = """\
id: PYSEC-2020-1
details: |
  Something
  bad.
affected:
- package: {name: Some_Package, ecosystem: PyPI}
  ranges:
  - type: GIT
    events: [{introduced: abc}]
  - type: ECOSYSTEM
    events: [{introduced: '0'}, {fixed: 1.2.0}, {introduced: 2.0.0}, {last_affected: 2.1.0}]
  versions: [0.9-custom-one, 3.0.0]
published: '2020-05-01T10:00:00Z'
"""


def database(path: Path, text: str = _ADVISORY) -> Path:
    folder = path / "vulns" / "some-package"
    folder.mkdir(parents=True)
    (folder / "PYSEC-2020-1.yaml").write_text(text)
    return path


@pytest.mark.parametrize(
    ("version", "holds"),
    [
        ("1.1.9", True),
        ("1.2.0", False),
        ("1.9", False),
        ("2.0.0", True),
        ("2.1.0", True),
        ("2.1.1", False),
        ("3.0", True),
        ("1.2.0rc1", True),
    ],
)
def test_versions_between_the_events_are_affected(
    tmp_path: Path, version: str, holds: bool
) -> None:
    findings, looked_at, newest = audit([f"some.package=={version}"], database(tmp_path))
    assert [f.advisory for f in findings] == ["PYSEC-2020-1"] * holds
    assert (looked_at, newest) == (1, date(2020, 5, 1))
    assert all(f.summary == "Something bad." for f in findings)


def test_a_withdrawn_advisory_is_none(tmp_path: Path) -> None:
    path = database(tmp_path, _ADVISORY + "withdrawn: '2021-01-01T00:00:00Z'\n")
    assert audit(["some-package==1.0"], path)[0] == []


def test_what_cannot_be_read_is_no_good_result(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="not the advisory database"):
        audit(["a==1"], tmp_path)
    broken = database(tmp_path, "id: PYSEC-2020-1\n")
    with pytest.raises(ValueError, match=r"PYSEC-2020-1\.yaml"):
        audit(["some-package==1.0"], broken)
    with pytest.raises(ValueError, match="not a pin"):
        list(pins(["a>=1"]))


def test_all_pins_of_this_tree_can_be_looked_up() -> None:
    constraints = Path(__file__).parents[2] / "constraints.txt"
    found = list(pins(constraints.read_text().splitlines()))
    assert len(found) > 50
    assert not any(is_affected(version, {}) for _, version in found)
