"""Starts that can't succeed end with exit code 1 and one line that says why."""

import shutil
from pathlib import Path

from tests.standalone_process import StandaloneProcess


def only_line(said: str) -> str:
    lines = said.strip().splitlines()
    assert len(lines) == 1, said
    assert lines[0].startswith("magnetar: can't start: ")
    return lines[0]


def test_a_data_directory_is_served_by_one_process(tmp_path: Path) -> None:
    with StandaloneProcess(tmp_path / "data") as first:
        second = StandaloneProcess(tmp_path / "data")
        assert "another process is using it" in second.refuse_to_start()
        port, web_port = first.port, first.web_port
        other = StandaloneProcess(tmp_path / "other")
        assert "ddress already in use" in only_line(other.refuse_to_start(port))
        assert "ddress already in use" in only_line(other.refuse_to_start(0, web_port))


def test_damaged_files_are_named(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with StandaloneProcess(data):
        pass
    database = next(data.rglob("*.sqlite"))
    journal = sorted(data.rglob("journal/*"))[0]
    kept = journal.read_bytes()
    journal.write_bytes(b"\xff" * 16 + kept[16:])
    said = only_line(StandaloneProcess(data).refuse_to_start().splitlines()[-1])
    assert journal.name in said
    journal.write_bytes(kept)
    database.write_bytes(b"no database at all" * 100)
    for log in data.rglob("*.sqlite-*"):
        log.unlink()
    said = StandaloneProcess(data).refuse_to_start().splitlines()[-1]
    assert str(database) in said
    shutil.rmtree(data)
    data.write_text("a file")
    assert "data" in StandaloneProcess(data).refuse_to_start().splitlines()[-1]
