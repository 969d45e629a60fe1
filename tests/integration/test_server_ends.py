"""Servers end when they are told to, also as process 1 of a container, and in time."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.child_process import ChildProcess
from tests.free_port import free_port
from tests.integration.failure_tools import (
    check_history,
    keep,
    new_topic,
    open_producer,
    publish,
    send_all,
)
from tests.standalone_process import StandaloneProcess
from tests.waiting import wait_until

WAIT_S = 120.0
LOGS_JSON = ("--set", "logFormat=json")
NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child", "--user", "--map-root-user")


class Waiting(ChildProcess):
    """A server that asks for its node's zone, of an API server that isn't there: for 20 s, before
    anything is open."""

    def __init__(self, folder: Path, words: list[str], *, is_first: bool) -> None:
        super().__init__(folder / "server.log")
        before = NAMESPACE if is_first else ()
        self._command = [*before, sys.executable, "-m", "magnetar.broker.cli.main", *words]
        self._is_first = is_first

    def start(self) -> None:
        os_environment = dict(os.environ)
        try:
            os.environ |= {
                "MAGNETAR_nodeName": "node-1",
                "KUBERNETES_SERVICE_HOST": "127.0.0.1",
                "KUBERNETES_SERVICE_PORT": str(free_port()),
            }
            self._process = self.popen(self._command)
        finally:
            os.environ.clear()
            os.environ.update(os_environment)
        wait_until(lambda: "asking again" in self.log, f"it asks: {self.log}", WAIT_S)

    def end(self) -> int:
        """SIGTERM for the server, wherever it is; its exit code."""
        process = self.take()
        pid = process.pid
        if self._is_first:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            pid = int(children[0])
        os.kill(pid, signal.SIGTERM)
        try:
            return process.wait(WAIT_S)
        finally:
            process.kill()
            process.wait()


def _namespaces_are_allowed() -> bool:
    done = subprocess.run([*NAMESPACE, "true"], capture_output=True, timeout=WAIT_S, check=False)
    return done.returncode == 0


@pytest.mark.parametrize("role", ["broker", "bookie", "autorecovery"])
@pytest.mark.parametrize("is_first", [False, True], ids=["plain", "process-1"])
def test_a_signal_before_there_is_a_loop_ends_the_start(
    tmp_path: Path, role: str, is_first: bool
) -> None:
    """Linux drops a signal for process 1 that has no handler: it would run on until SIGKILL."""
    if is_first and not _namespaces_are_allowed():
        pytest.skip("no process namespaces here")
    words = [role, "--metadata", f"zk:127.0.0.1:{free_port()}"]
    server = Waiting(tmp_path, words, is_first=is_first)
    server.start()
    assert server.end() == 0, server.log
    assert "can't start" not in server.log


def test_a_disk_that_hangs_holds_up_no_end(tmp_path: Path) -> None:
    """The journal's thread is in a call that doesn't return: the flush and its thread are waited
    for until the time is over, and no longer."""
    trigger = tmp_path / "hangs"
    command = ("tests.faulty_standalone", "journal.group", str(trigger))
    options = ("--set", "brokerShutdownTimeoutMs=2000")
    with StandaloneProcess(tmp_path / "data", *options, command=command) as process:
        with open_producer(process.service_url, new_topic()) as producer:
            trigger.write_text("hang")
            send_all(producer, range(10))
            wait_until(lambda: "hangs now" in process.log, "the journal is written to")
            assert process.stop(WAIT_S) == 4, process.log
        assert "without a complete" in process.log


def test_an_end_that_fails_is_told_by_its_exit_code(tmp_path: Path) -> None:
    """As closing a file may, on a disk in the network: what was acknowledged is synced by then."""
    trigger, topic = tmp_path / "fails", new_topic()
    command = ("tests.faulty_standalone", "none of them", str(trigger))
    with StandaloneProcess(tmp_path / "data", *LOGS_JSON, command=command) as process:
        keep(process.service_url, topic)
        receipts = publish(process.service_url, topic, range(100))
        trigger.write_text("close")
        assert process.stop(WAIT_S) == 4, process.log
        lines = [json.loads(line) for line in process.log.splitlines() if line[:1] == "{"]
        said = next(line for line in lines if line["message"] == "stopped without a complete end")
        assert "Input/output error" in said["exception"]
        trigger.unlink()
        process.start()
        check_history(process.service_url, topic, receipts)


def _python(code: str, variables: Mapping[str, str] | None = None) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **(variables or {})},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    return done.returncode, done.stderr


def test_threads_that_never_return_end_with_the_process() -> None:
    code, said = _python(
        """
        import asyncio, sys, time
        from magnetar.bookkeeper import process_shutdown

        async def serve():
            asyncio.get_running_loop().run_in_executor(None, time.sleep, 3600)
            return 3

        process_shutdown._TEARDOWN_S_MAX = 0.1
        sys.exit(process_shutdown.run_server(serve))
        """
    )
    assert code == 3
    assert "something hangs" in said


def test_a_loop_that_is_busy_can_t_hold_up_the_end() -> None:
    code, said = _python(
        """
        import time
        from magnetar.bookkeeper import process_shutdown

        async def serve():
            process_shutdown.end_after(0.1, 4)
            time.sleep(3600)
            return 0

        process_shutdown.run_server(serve)
        """
    )
    assert code == 4
    assert "something hangs" in said


def test_an_end_that_is_in_time_is_left_alone() -> None:
    code, said = _python(
        """
        import sys
        from magnetar.bookkeeper import process_shutdown

        async def serve():
            process_shutdown.end_after(3600, 4)
            return 0

        sys.exit(process_shutdown.run_server(serve))
        """
    )
    assert (code, said) == (0, "")
