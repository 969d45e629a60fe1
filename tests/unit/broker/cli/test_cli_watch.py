"""``--watch``: frames on a terminal, one answer after the other elsewhere."""

import contextlib
import io
from collections.abc import Callable

import pytest

from magnetar.broker.cli.errors import CliError
from magnetar.broker.cli.main import build_parser, main
from magnetar.broker.cli.watch import watch


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def watched(to: io.StringIO, run: Callable[[int], str], rounds: int = 2) -> str:
    """What is shown in so many rounds, whose numbers ``run`` gets."""
    waited: list[float] = []

    def once() -> int:
        print(run(len(waited)))
        return 0

    def wait(interval_s: float) -> None:
        waited.append(interval_s)
        if len(waited) == rounds:
            raise KeyboardInterrupt

    with contextlib.redirect_stdout(to), pytest.raises(KeyboardInterrupt):
        watch(5.0, once, wait=wait)
    assert waited == [5.0] * rounds
    return to.getvalue()


def test_a_file_gets_one_answer_after_the_other() -> None:
    assert watched(io.StringIO(), str) == "0\n1\n"


def test_a_terminal_gets_frames_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "5")
    shown = watched(Terminal(), lambda number: "\n".join("abcdefg"[: 7 - 4 * number]))
    start, first, second = shown.split("\x1b[H")
    assert start == "\x1b[2J"
    title, *lines = first.split("\x1b[K\n")
    assert title.startswith("every 5 s, at ")
    assert lines == ["a", "b", "... 5 more lines", "\x1b[J"]
    assert second.split("\x1b[K\n")[1:] == ["a", "b", "c", "\x1b[J"]


def test_a_later_failure_is_shown_and_the_first_one_raised() -> None:
    def fail_at(bad: int) -> Callable[[int], str]:
        def run(number: int) -> str:
            if number == bad:
                raise CliError("no answer")
            return str(number)

        return run

    assert watched(io.StringIO(), fail_at(1), 3) == "0\nmagnetar: no answer\n2\n"
    with pytest.raises(CliError, match="no answer"):
        watch(5.0, lambda: int(fail_at(0)(0)))


@pytest.mark.parametrize(
    ("line", "interval_s"),
    [
        ("topics stats t --watch", 2.0),
        ("topics stats --watch=0.5 t", 0.5),
        ("admin brokers healthcheck --watch 10", 10.0),
        ("bookie-shell listbookies --watch", 2.0),
        ("pipeline backlog t --watch", 2.0),
        ("doctor --watch=5", 5.0),
        ("topics stats t", None),
    ],
)
def test_commands_that_read_can_be_watched(line: str, interval_s: float | None) -> None:
    words = line.split()
    assert build_parser(words).parse_args(words).watch == interval_s


@pytest.mark.parametrize(
    "line", ["topics stats --watch t", "topics delete t --watch", "topics stats t --watch=0"]
)
def test_wrong_use_is_told(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(line.split())
    assert "--watch" in capsys.readouterr().err
