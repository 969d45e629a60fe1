"""How long turns of the event loop take."""

import asyncio
import gc
import time
from types import TracebackType

TURN_MAX_S = 0.05


class Turns:
    """Fails if a turn of the loop has the processor for longer than `TURN_MAX_S`.

    Without full collections: what they look at is all that the tests of this process have made.
    """

    def __init__(self) -> None:
        self.longest_s = 0.0

    def __enter__(self) -> "Turns":
        gc.disable()
        self._task = asyncio.get_running_loop().create_task(self._watch())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._task.cancel()
        gc.enable()
        if error is None:
            assert self.longest_s < TURN_MAX_S

    async def _watch(self) -> None:
        while True:
            before = time.thread_time()
            await asyncio.sleep(0)
            self.longest_s = max(self.longest_s, time.thread_time() - before)
