"""Random histories through the two passes, beside the model that Apache Pulsar was asked about.

Replay one seed with MAGNETAR_SEED=41 MAGNETAR_SEEDS=1.
"""

import pytest

from magnetar.broker.compaction.two_passes import TwoPasses
from tests.compaction_histories import Do, End, Model, Publish, Row, history, rows_of
from tests.simulation.simulator import seeds

Stored = list[tuple[int, bytes]]


def _compacted(log: Stored, *, retains_keyless: bool) -> Stored:
    passes = TwoPasses(retains_keyless)
    for _, body in log:
        passes.note(body)
    passes.choose()
    kept = [(rank, passes.take(body)) for rank, body in log]
    return [(rank, bytes(body)) for rank, body in kept if body is not None]


def _shown(log: Stored) -> list[Row]:
    return [row for rank, body in log for row in rows_of(rank, body)]


@pytest.mark.parametrize("retains_keyless", [False, True])
@pytest.mark.parametrize("seed", seeds(60))
def test_what_is_kept(seed: int, retains_keyless: bool) -> None:
    model = Model(retains_keyless)
    bodies: list[bytes] = []
    kept: Stored = []
    for step in history(seed, deduplicates=False):
        if isinstance(step, Publish):
            rank = len(model.entries)
            model.entries.append(step.entry)
            bodies.append(step.entry.body(rank, rank, None))
        elif isinstance(step, End):
            model.end_transaction(step.transaction, commits=step.commits)
        elif step == Do("compact"):
            ranks = {row.rank for row in model.log(model.horizon)}  # none of an aborted transaction
            log = kept + [(rank, bodies[rank]) for rank in sorted(ranks)]
            kept = _compacted(log, retains_keyless=retains_keyless)
            model.compact()
            assert _shown(kept) == [row for row in model.view() if row.rank < model.horizon]
