"""Batches of several producers that one append stores."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from magnetar.broker.producer.producer import PublishBatch
from magnetar.managed_ledger.append_core import AppendDone
from magnetar.managed_ledger.entry_batch import Buffer

BatchDone: TypeAlias = Callable[[PublishBatch, int, int, int, BaseException | None], None]
"""Takes a batch, then what `AppendDone` takes, of the batch's next entries."""


def joined(
    batches: Sequence[PublishBatch], on_done: BatchDone
) -> tuple[list[bytes], list[Buffer], AppendDone]:
    """Heads and bodies of all, and what is called for them.

    Args:
        on_done: called for each batch, in order; of one that is stored in parts more than once.
    """
    heads = [head for batch in batches for head in batch.heads]
    bodies: list[Buffer] = [body for batch in batches for body in batch.bodies]
    waiting = [(batch, len(batch.heads)) for batch in reversed(batches)]  # the next one is last

    def on_part(ledger_id: int, first: int, count: int, error: BaseException | None) -> None:
        while count:
            batch, left = waiting.pop()
            if left > count:
                waiting.append((batch, left - count))
                left = count
            on_done(batch, ledger_id, first, left, error)
            count -= left
            if error is None:
                first += left

    return heads, bodies, on_part
