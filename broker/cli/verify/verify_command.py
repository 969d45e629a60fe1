"""``magnetar verify``: does a cluster keep Pulsar's promises?"""

import argparse
import asyncio
import random
import signal
import sys
from pathlib import Path
from typing import Final

from magnetar.broker.cli.binary_client import run_command
from magnetar.broker.cli.errors import CliError
from magnetar.broker.cli.output import print_value
from magnetar.broker.cli.profiles import target_of
from magnetar.broker.cli.progress import progress
from magnetar.broker.cli.verify.outcome import as_json, as_text, of_rounds, verdict_of
from magnetar.broker.cli.verify.report import page_of
from magnetar.broker.cli.verify.run import Outcome, VerifySettings, run_rounds

CLEAN, VIOLATED, UNKNOWN = 0, 1, 2
MESSAGES_MIN: Final = 10
_TERMINATED: Final = 128 + signal.SIGTERM


def run_verify(options: argparse.Namespace) -> int:
    """0: every promise was kept; 1: one was broken; 2: nobody can say; 143: ended by SIGTERM.

    Raises:
        CliError: the cluster can't be used, the report not be written.
    """
    _check(options)
    try:
        return run_command(_verify(options))
    except asyncio.CancelledError:
        return _TERMINATED


async def _verify(options: argparse.Namespace) -> int:
    seed = random.randrange(2**32) if options.seed is None else options.seed
    settings = VerifySettings(
        options.namespace,
        seed,
        options.seconds,
        options.messages,
        options.request_timeout,
        known_faults=options.known_faults,
    )
    done: Outcome | None = None
    work = asyncio.current_task()
    assert work is not None
    # As by Ctrl-C: the topics are removed. The handler ends with the loop.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.cancel)

    def on_round(outcome: Outcome) -> None:
        nonlocal done
        done = outcome
        _tell_round(outcome)

    try:
        with progress("sending, receiving, disturbing", None):
            done = await run_rounds(target_of(options), settings, on_round)
    except asyncio.CancelledError:  # by Ctrl-C or SIGTERM: what was seen until then isn't lost
        if done is not None:
            done.unjudged = "interrupted"
            _show(done, options)
        raise
    return _show(done, options)


def _show(outcome: Outcome, options: argparse.Namespace) -> int:
    if options.json:
        print_value(as_json(outcome), as_json=True)
    else:
        print("\n".join(as_text(outcome)))
    if options.report:
        _write(Path(options.report), page_of(outcome))
    return {"clean": CLEAN, "violated": VIOLATED, "unknown": UNKNOWN}[verdict_of(outcome)]


def _check(options: argparse.Namespace) -> None:
    """Before a minute's work. Raises CliError."""
    if options.messages < MESSAGES_MIN:
        raise CliError(f"--messages {options.messages}: at least {MESSAGES_MIN}")
    if options.report:
        path = Path(options.report)
        is_new = not path.exists()
        _write(path, "", "a")  # an earlier report stays until there is another one
        if is_new:
            path.unlink()


def _write(path: Path, text: str, mode: str = "w") -> None:
    try:
        with path.open(mode, encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise CliError(f"{path}: {error.strerror}") from error


def _tell_round(outcome: Outcome) -> None:
    print(of_rounds(outcome), file=sys.stderr)
