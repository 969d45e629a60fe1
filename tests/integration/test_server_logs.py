"""With ``logFormat=json`` every line on standard error is an object, whoever says it."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.free_port import free_port

WAIT_S = 120.0
SHORT = "metadataStoreStartTimeoutSeconds=1"


def said_by(command: list[str], variables: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """What a process logs that ends with exit code 1."""
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, **(variables or {})},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, ""), done
    return [json.loads(line) for line in done.stderr.splitlines()]


def server(*words: str) -> list[str]:
    return ["-m", "magnetar.broker.cli.main", *words]


def options_of(role: str, folder: Path) -> list[str]:
    """Of a server that can't start: there is no ZooKeeper, or the folder is a file."""
    if role == "standalone":
        (folder / "data").write_text("no folder")
        return ["--data", str(folder / "data"), "--port", "0", "--web-port", "0"]
    return ["--metadata", f"zk:127.0.0.1:{free_port()}", "--set", SHORT]


@pytest.mark.parametrize("role", ["standalone", "broker", "bookie", "autorecovery"])
def test_why_there_is_no_start(tmp_path: Path, role: str) -> None:
    port = ["--web-port", "0", "--port", "0"] if role == "broker" else []
    words = [role, *options_of(role, tmp_path), *port, "--set", "noSuchKey=1"]
    lines = said_by(server(*words, "--log-format", "json"))
    assert lines[-1]["level"] == "ERROR"
    assert lines[-1]["message"].startswith("magnetar: can't start: ")
    assert any("ignored 1 unknown settings: noSuchKey" in line["message"] for line in lines)


@pytest.mark.parametrize("role", ["standalone", "broker", "bookie", "autorecovery"])
def test_settings_that_can_t_be_right_name_their_variable(role: str) -> None:
    variables = {
        "MAGNETAR_LOG_FORMAT": "json",
        "MAGNETAR_LOG_LEVEL": "LOUD",
        "MAGNETAR_METADATA_STORE_URL": "zk:127.0.0.1:1",
    }
    (line,) = said_by(server(role), variables)
    assert "LOUD" in line["message"]
    assert "MAGNETAR_LOG_LEVEL" in line["message"]


def test_the_form_may_stand_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("logFormat=json\nbrokerServicePort=many\n")
    (line,) = said_by(server("broker", "--config", str(file)))
    assert "brokerServicePort='many'" in line["message"]


def test_zookeeper_too() -> None:
    (line,) = said_by(server("zookeeper", "--heap", "much", "--log-format", "json"))
    assert line["message"] == "magnetar: --heap much: a size such as 256m is expected"


def test_what_nobody_caught() -> None:
    code = """
        import threading, warnings
        from magnetar.broker.logs import log_what_nobody_catches, set_up_log

        class Falls:
            def __del__(self):
                raise ValueError("deleted")

        def fail(what):
            raise ValueError(what)

        set_up_log("INFO", "json")
        log_what_nobody_catches()
        warnings.warn("careful")
        Falls()
        thread = threading.Thread(target=fail, args=("thread",), name="some")
        thread.start()
        thread.join()
        fail("end")
        """
    lines = said_by(["-c", textwrap.dedent(code)])
    assert "careful" in lines[0]["message"]
    assert "ValueError: deleted" in lines[1]["exception"]
    assert lines[2]["message"] == "in thread some"
    assert "ValueError: thread" in lines[2]["exception"]
    assert (lines[3]["level"], lines[3]["message"]) == ("CRITICAL", "not caught")
    assert "ValueError: end" in lines[3]["exception"]


def test_a_line_whose_parts_don_t_fit_is_a_line() -> None:
    code = """
        import logging, sys
        from magnetar.broker.logs import set_up_log

        set_up_log("INFO", "json")
        logging.info("%d of them", "many")
        logging.info("large", extra={"fields": {"count": 1 << 70, "names": ["\\udcff"]}})
        sys.exit(1)
        """
    first, second = said_by(["-c", textwrap.dedent(code)])
    assert first["message"] == "%d of them ('many',)"
    assert second["count"] == 1 << 70
