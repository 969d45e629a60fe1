"""What a user reads where Java or a package is missing, or Spark fails."""

import io
from pathlib import Path

import pytest

from magnetar.pipeline.errors import DataLossError, JobError, SegmentsUnavailableError, SetupError
from magnetar.pipeline.jobs.job_cancellation import reason_of
from magnetar.pipeline.jobs.progress import Progress, StageProgress, line_of, size_text
from magnetar.pipeline.session import check_packages, check_setup, java_major

OPENJDK = 'openjdk version "{}" 2025-04-15\nOpenJDK Runtime Environment (build 17)\n'


@pytest.mark.parametrize(
    ("version", "major"), [("17.0.15", 17), ("21", 21), ("1.8.0_292", 8), ("11.0.2", 11)]
)
def test_versions_of_java(version: str, major: int) -> None:
    assert java_major(OPENJDK.format(version)) == major


def test_what_is_no_java() -> None:
    assert java_major("") is None
    assert java_major("command not found") is None


def java_home(folder: Path, script: str) -> dict[str, str]:
    java = folder / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    return {"JAVA_HOME": str(folder), "PATH": "/usr/bin:/bin"}


def test_no_java(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="java not found: Spark needs Java 17 or newer"):
        check_setup({"PATH": str(tmp_path)})
    with pytest.raises(SetupError, match="java not found: JAVA_HOME is"):
        check_setup({"PATH": str(tmp_path), "JAVA_HOME": str(tmp_path)})


def test_old_java(tmp_path: Path) -> None:
    environment = java_home(tmp_path, """echo 'openjdk version "11.0.2" 2019' >&2""")
    with pytest.raises(SetupError, match="is Java 11: Spark needs Java 17 or newer"):
        check_setup(environment)


def test_new_java(tmp_path: Path) -> None:
    check_setup(java_home(tmp_path, """echo 'openjdk version "21.0.1" 2023' >&2"""))


def test_broken_java(tmp_path: Path) -> None:
    environment = java_home(tmp_path, "echo no room for the heap >&2; exit 1")
    with pytest.raises(SetupError, match="doesn't tell its version: no room for the heap"):
        check_setup(environment)


def test_missing_packages() -> None:
    check_packages("json")
    with pytest.raises(SetupError, match=r"nowhere_at_all not found: pip install '.\[pip"):
        check_packages("json", "nowhere_at_all")


def test_reasons_of_tasks() -> None:
    text = (
        "[PYTHON_DATA_SOURCE_ERROR] Failed when Python data source instance reads data:\n"
        "Traceback (most recent call last):\n  File 'x.py', line 1, in read\n"
        "magnetar.pipeline.errors.DataLossError: t: ledger 5, entry 3 is not stored any more\n"
        "\tat org.apache.spark.x(Y.scala:1)\n"
    )
    reason = reason_of(text)
    assert type(reason) is DataLossError
    assert str(reason) == "t: ledger 5, entry 3 is not stored any more"
    last = reason_of(
        f"{text}magnetar.pipeline.errors.SegmentsUnavailableError: no broker answers: x\n"
    )
    assert type(last) is SegmentsUnavailableError


def test_reasons_of_others() -> None:
    text = "Job aborted due to stage failure\n\tat x\nCaused by: java.io.IOException: disk full\n"
    reason = reason_of(text)
    assert type(reason) is JobError
    assert str(reason) == "Spark failed: Job aborted due to stage failure: disk full"
    python = "[FAILED] The source: Traceback (most recent call last):\n  File x\nValueError: bad\n"
    assert str(reason_of(python)) == "Spark failed: [FAILED] The source: bad"
    assert "no reason" in str(reason_of(""))
    # A name that happens to be there, but isn't an error of ours.
    assert type(reason_of("magnetar.pipeline.errors.annotations: x")) is JobError


def test_lines_of_progress() -> None:
    assert line_of("export", StageProgress(3, 8, 1_204_000, 1_181_116_006)) == (
        "export: 3 of 8 partitions, 1,204,000 rows, 1.1 GiB"
    )
    assert line_of("export", StageProgress(0, 8)) == "export: 0 of 8 partitions"
    assert [size_text(size) for size in (0, 1023, 1536, 2**60)] == [
        *("0 B", "1023 B"),
        *("1.5 KiB", "1024.0 PiB"),
    ]


def test_progress_is_for_terminals() -> None:
    nobody, asked = io.StringIO(), io.StringIO()
    Progress(stream=nobody).say("x")
    Progress(True, asked).say("x")
    assert (nobody.getvalue(), asked.getvalue()) == ("", "x\n")
