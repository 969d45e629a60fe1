"""The states of processes, as the command notes them and their doctors read them."""

from pathlib import Path

import pytest

from magnetar.broker.doctor.process_checks import ProcessFacts
from magnetar.broker.local_cluster.member_process import Member, RestartPolicy
from magnetar.broker.processes.states import (
    ProcessStates,
    forget_states,
    read_states,
    write_states,
)


def started() -> tuple[Member, ProcessStates]:
    member = Member(RestartPolicy())
    states = ProcessStates([("broker-1", "", member)])
    member.on_started(0.0, 7)
    states.note(1_000)
    member.on_ready()
    assert states.note(2_000) == [ProcessFacts("broker-1", "ready", 2_000)]
    return member, states


def test_a_state_is_as_old_as_its_change() -> None:
    _, states = started()
    assert states.note(9_000) == [ProcessFacts("broker-1", "ready", 2_000)]


def test_ends_are_noted_with_their_time() -> None:
    member, states = started()
    for number, at_ms in enumerate((3_000, 4_000), 1):
        member.on_exit(at_ms / 1000, f"exit {number}")
        assert states.note(at_ms)[0].since_ms == at_ms
        member.on_started(at_ms / 1000, 8)
        states.note(at_ms + 500)
    assert states.note(5_000) == [
        ProcessFacts("broker-1", "starting", 4_500, "exit 2", 2, (3_000, 4_000))
    ]


def test_an_end_that_was_asked_for_is_none() -> None:
    member, states = started()
    member.on_stop()
    member.on_exit(3.0, "exit 0")
    assert states.note(3_000) == [ProcessFacts("broker-1", "stopped", 3_000)]


def test_they_are_read_as_they_were_written(tmp_path: Path) -> None:
    facts = [ProcessFacts("storage", "restarting", 5, "killed by SIGKILL", 2, (4, 5))]
    write_states(tmp_path, facts)
    assert read_states(tmp_path) == facts
    forget_states(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_states(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[1]", '[{"name": "storage"}]', '[{"x": 1}]'])
def test_something_else_in_the_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "states.json").write_text(text)
    with pytest.raises(ValueError, match=r"states\.json|line 1"):
        read_states(tmp_path)


def test_a_folder_that_is_gone_ends_nothing(tmp_path: Path) -> None:
    write_states(tmp_path / "gone", [])
