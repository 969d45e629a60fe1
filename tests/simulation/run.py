"""Runs seeds of the simulations on all cores: ``python -m tests.simulation.run --help``.

Progress goes to stderr; at the end there is a table of the faults that were injected and the states
that were reached, so that one sees that the seeds aren't empty. A failing seed is printed with the
command that replays it; one seed alone (``--seed``) prints every event of its run.
"""

import argparse
import datetime
import json
import multiprocessing
import os
import platform
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.simulation.worlds import WORLDS, replay_command, run_seed

_SHOWN_MAX: Final = 20  # failing seeds that are printed
_PAUSE_S: Final = 2.0

#: Shares of the worlds in ``--world mixed``, in a hundred seeds.
MIXTURE: Final = {"protocol": 95, "cluster": 5}


@dataclass
class Tally:
    """What some seeds of one world came to."""

    seeds: int = 0
    cpu_s: float = 0.0
    counters: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        self.seeds += other.seeds
        self.cpu_s += other.cpu_s
        self.counters += other.counters
        self.failures += other.failures


@dataclass(frozen=True)
class Chunk:
    """Seeds [first, end) of a world, for one process at a time."""

    world: str
    first: int
    end: int
    pause_file: Path | None

    def run(self) -> Tally:
        tally = Tally()
        for seed in range(self.first, self.end):
            while self.pause_file is not None and self.pause_file.exists():
                time.sleep(_PAUSE_S)
            began_s = time.process_time()
            outcome = run_seed(self.world, seed)
            tally.cpu_s += time.process_time() - began_s
            tally.seeds += 1
            tally.counters += outcome.counters
            if outcome.violations:
                tally.failures.append((seed, "; ".join(outcome.violations[:3])))
        return tally


def chunks(world: str, first: int, count: int, pause_file: Path | None) -> Iterator[Chunk]:
    size = 200 if world == "protocol" else 25
    for start in range(first, first + count, size):
        yield Chunk(world, start, min(start + size, first + count), pause_file)


def plan(worlds: dict[str, int], first: int, pause_file: Path | None) -> list[Chunk]:
    """Chunks of all worlds, mixed, so that an interrupted run has something of each."""
    lists = [list(chunks(world, first, count, pause_file)) for world, count in worlds.items()]
    marked = [(at / len(each), chunk) for each in lists for at, chunk in enumerate(each)]
    return [chunk for _, chunk in sorted(marked, key=lambda item: item[0])]


def run_chunks(todo: Iterable[Chunk], jobs: int) -> Iterator[tuple[Chunk, Tally]]:
    """Results as they come."""
    if jobs == 1:
        for chunk in todo:
            yield chunk, chunk.run()
        return
    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
    running: dict[Future[Tally], Chunk] = {}
    try:
        for chunk in todo:
            running[pool.submit(chunk.run)] = chunk
            if len(running) >= 2 * jobs:
                yield from _finished(running)
        while running:
            yield from _finished(running)
    finally:
        pool.shutdown(cancel_futures=True)  # interrupted: no process goes on by itself


def _finished(running: dict[Future[Tally], Chunk]) -> Iterator[tuple[Chunk, Tally]]:
    done, _ = wait(running, return_when=FIRST_COMPLETED)
    for future in done:
        yield running.pop(future), future.result()


def _report(tallies: dict[str, Tally], began_s: float, total: int) -> None:
    done = sum(tally.seeds for tally in tallies.values())
    failed = sum(len(tally.failures) for tally in tallies.values())
    print(
        f"{done} of {total} seeds, {failed} failed, {time.monotonic() - began_s:.0f} s",
        file=sys.stderr,
        flush=True,
    )


def _code() -> dict[str, object]:
    """Which code runs; asked at the start, because others commit meanwhile."""

    def git(*arguments: str) -> str:
        answer = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
        return answer.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", "bookkeeper", "metadata")
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": git("rev-parse", "HEAD"),
        "changed_since": sorted(line.split()[-1] for line in changed.splitlines()),
    }


def _document(
    code: dict[str, object], tallies: dict[str, Tally], began_s: float, complete: bool
) -> dict[str, object]:
    return {
        **code,
        "command": "python -m tests.simulation.run " + " ".join(sys.argv[1:]),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "complete": complete,
        "seconds": round(time.monotonic() - began_s),
        "seeds": sum(tally.seeds for tally in tallies.values()),
        "failed": sum(len(tally.failures) for tally in tallies.values()),
        "worlds": {
            world: {
                "seeds": tally.seeds,
                "cpu_ms_per_seed": round(tally.cpu_s * 1000 / max(1, tally.seeds), 2),
                "failures": [{"seed": seed, "what": what} for seed, what in tally.failures],
                "counters": dict(sorted(tally.counters.items())),
            }
            for world, tally in tallies.items()
        },
    }


def _print_tables(tallies: dict[str, Tally]) -> None:
    for world, tally in tallies.items():
        cost = tally.cpu_s * 1000 / max(1, tally.seeds)
        print(f"\n{world}: {tally.seeds} seeds, {cost:.1f} ms of CPU each")
        for what, times in sorted(tally.counters.items()):
            print(f"  {times:>12,}  {what}")
        for seed, text in sorted(tally.failures)[:_SHOWN_MAX]:
            print(f"  FAILED {replay_command(world, seed)}\n         {text}")


def replay(world: str, seed: int) -> int:
    """Every event of one run, and what it came to."""
    outcome = run_seed(world, seed, sys.stdout)
    for what, times in sorted(outcome.counters.items()):
        print(f"  {times:>12,}  {what}")
    print(f"seed {seed} of {world}: digest {outcome.digest}, {len(outcome.violations)} violations")
    for violation in outcome.violations:
        print(f"  {violation}")
    return 1 if outcome.violations else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.run")
    parser.add_argument("--world", choices=[*WORLDS, "mixed"], default="mixed")
    parser.add_argument("--seed", type=int, help="only this one, with all its events")
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--results", type=Path, help="JSON file; written as the run goes on")
    parser.add_argument("--pause-file", type=Path, help="wait while this file exists")
    return parser.parse_args()


def main() -> int:
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    if arguments.seed is not None:
        world = "protocol" if arguments.world == "mixed" else arguments.world
        return replay(world, arguments.seed)
    if arguments.world == "mixed":
        present = {world: share for world, share in MIXTURE.items() if world in WORLDS}
        whole = sum(present.values())
        worlds = {w: arguments.seeds * share // whole for w, share in present.items()}
    else:
        worlds = {arguments.world: arguments.seeds}
    total = sum(worlds.values())
    code = _code()
    tallies = {world: Tally() for world in worlds}
    began_s = told_s = time.monotonic()
    todo = plan(worlds, arguments.first, arguments.pause_file)
    for chunk, tally in run_chunks(todo, arguments.jobs):
        tallies[chunk.world].add(tally)
        for seed, text in tally.failures:
            print(f"FAILED {replay_command(chunk.world, seed)}\n  {text}", flush=True)
        if time.monotonic() - told_s > 10:
            told_s = time.monotonic()
            _report(tallies, began_s, total)
            if arguments.results is not None:
                _write(arguments.results, _document(code, tallies, began_s, complete=False))
    _print_tables(tallies)
    if arguments.results is not None:
        _write(arguments.results, _document(code, tallies, began_s, complete=True))
    return 1 if any(tally.failures for tally in tallies.values()) else 0


def _write(path: Path, document: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
