"""What the command knows of its processes, in a file that their doctors read.

Written by the process that starts the others (``run.py``): a dead one can't tell of itself.
"""

import logging
import os
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

import orjson

from magnetar.broker.doctor.process_checks import ENDS_MAX, ProcessFacts
from magnetar.broker.local_cluster.member_process import Member

_log = logging.getLogger(__name__)

_NAME: Final = "states.json"


class ProcessStates:
    """The latest state of each process."""

    def __init__(self, members: Iterable[tuple[str, str, Member]]) -> None:
        """``members``: name, id of a broker (else ""), state."""
        self._members = list(members)
        self._facts: dict[str, ProcessFacts] = {}

    def note(self, now_ms: int) -> list[ProcessFacts]:
        """All of them; what differs from the last time has happened now."""
        self._facts = {
            name: replace(_noted(name, member, self._facts.get(name), now_ms), broker_id=broker_id)
            for name, broker_id, member in self._members
        }
        return list(self._facts.values())


def _noted(name: str, member: Member, last: ProcessFacts | None, now_ms: int) -> ProcessFacts:
    state, since_ms = str(member.state), now_ms
    ends_ms: tuple[int, ...] = ()
    if last is not None:
        since_ms = last.since_ms if last.state == state else now_ms
        ends_ms = last.ends_ms
    if member.ends > (0 if last is None else last.ends):
        ends_ms = (*ends_ms, now_ms)[-ENDS_MAX:]
        since_ms = now_ms
    return ProcessFacts(name, state, since_ms, member.how_ended, member.ends, ends_ms)


def write_states(folder: Path, facts: Iterable[ProcessFacts]) -> None:
    """A file that can't be written is told in the log: it is for people who look for a fault."""
    new = folder / f"{_NAME}.new"
    try:
        new.write_bytes(orjson.dumps([asdict(each) for each in facts]))
        new.replace(folder / _NAME)
    except OSError as error:
        _log.warning("doctors don't learn the state of processes: %s", error)


def forget_states(folder: Path) -> None:
    (folder / _NAME).unlink(missing_ok=True)


def read_states(folder: Path) -> list[ProcessFacts]:
    """Raises OSError, ValueError: there is no such file, or something else in it."""
    with open(os.path.join(folder, _NAME), "rb") as file:
        found = orjson.loads(file.read())
    try:
        return [ProcessFacts(**{**each, "ends_ms": tuple(each["ends_ms"])}) for each in found]
    except (TypeError, KeyError) as error:
        raise ValueError(f"{_NAME}: {error!r}") from error
