"""``magnetar standalone --processes N`` with real processes: used, hurt, stopped, started again."""

import json
import re
import urllib.request
from pathlib import Path

import pytest

from tests.cluster_process import is_alive
from tests.metrics_page import samples_of
from tests.numbered_messages import TOPICS, Sender, check_all
from tests.official_client import client_of
from tests.several_processes import SeveralProcesses
from tests.standalone_process import StandaloneProcess
from tests.waiting import wait_until


def kill_and_go_on(processes: SeveralProcesses, name: str, sender: Sender) -> None:
    before = sender.total
    processes.kill_child(name)
    wait_until(lambda: sender.total >= before + 80, "messages go on")


def get(url: str) -> str:
    with urllib.request.urlopen(url) as answer:
        return str(answer.read().decode())


def owner_of(processes: SeveralProcesses, topic: str) -> str:
    path = topic.replace("://", "/")
    answer = get(f"{processes.admin_url}/lookup/v2/topic/{path}")
    found = re.search(r'"nativeUrl":"([^"]+)"', answer)
    assert found is not None
    return found[1]


def keep_all(url: str) -> None:
    with client_of(url) as made:
        for topic in TOPICS:
            made.subscribe(topic, "keeper").close()  # nothing is trimmed


@pytest.mark.slow
def test_processes_are_killed_and_another_number_of_them_started(tmp_path: Path) -> None:
    with SeveralProcesses(tmp_path / "data", "--processes", "2") as two:
        assert set(two.children()) == {"storage", "broker-1", "broker-2"}
        keep_all(two.service_url)
        assert len({owner_of(two, topic) for topic in TOPICS}) == 2  # both work
        sender = Sender(two.service_url)
        sender.start()
        wait_until(lambda: sender.total >= 80, "messages")
        for name in ("broker-2", "storage", "broker-1"):
            kill_and_go_on(two, name, sender)
        sender.stop()
        check_all(two.service_url, sender.acknowledged)
        report = json.loads(get(f"{two.admin_url}/admin/v2/doctor"))
        told = {each["subject"]: each["check"] for each in report["findings"]}
        assert told.items() >= dict.fromkeys(two.children(), "process-restarted").items()
        processes = {dict(labels)["process"] for _, labels in samples_of(two.admin_url)}
        assert processes == set(two.children())
        children = list(two.children().values())
        assert two.stop() == 0
        assert [each for each in children if is_alive(each)] == []
    # The same directory with one process, and with more.
    with StandaloneProcess(tmp_path / "data") as one:
        check_all(one.service_url, sender.acknowledged)
    with SeveralProcesses(tmp_path / "data", "--processes", "3") as three:
        check_all(three.service_url, sender.acknowledged)
        children = list(three.children().values())
        three.kill()
        wait_until(
            lambda: not [each for each in children if is_alive(each)], "nobody outlives it", 30
        )


def test_a_port_in_use_is_told_before_anything_starts(tmp_path: Path) -> None:
    with StandaloneProcess(tmp_path / "one") as other:
        processes = SeveralProcesses(tmp_path / "two", "--processes", "2")
        refusal = processes.refuse_to_start(port=other.port)
    assert f"port {other.port} (brokerServicePort of broker-1) is in use" in refusal
    assert not (tmp_path / "two").exists()


def test_a_directory_in_use_is_told(tmp_path: Path) -> None:
    with StandaloneProcess(tmp_path / "data"):
        refusal = SeveralProcesses(tmp_path / "data", "--processes", "2").refuse_to_start()
    assert "magnetar: can't start: metadata database" in refusal
    assert "storage can't start" in refusal
