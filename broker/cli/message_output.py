"""What ``consume`` and ``read`` show, by whatever protocol: as many as wanted, at their pace."""

import argparse
import sys
import time
from collections.abc import Callable

from magnetar.broker.cli.payloads import wait_for_turn


class MessageOutput:
    """Counts the messages of one command."""

    def __init__(self, options: argparse.Namespace, advance: Callable[[int], None]) -> None:
        """``advance``: told of messages that aren't shown."""
        self.count = 0
        self._options, self._advance = options, advance
        self._started_s = time.monotonic()

    @property
    def is_enough(self) -> bool:
        return bool(0 < self._options.num_messages <= self.count)

    async def show(self, describe: Callable[[], str]) -> None:
        """One more; ``describe`` makes its text, where it is wanted."""
        await wait_for_turn(self._started_s, self.count, self._options.rate)
        self.count += 1
        if self._options.hide_content:
            self._advance(1)
            return
        print("----- got message -----")
        print(describe(), flush=True)

    def content(self, payload: bytes) -> str:
        return payload.hex(" ") if self._options.hex else payload.decode(errors="replace")

    def end(self, done: str, *, silent: bool) -> int:
        """The exit code: 1 when the silence was too long."""
        if silent:
            print(f"{self.count} messages received, then silence", file=sys.stderr)
            return 1
        print(f"{self.count} messages successfully {done}")
        return 0
