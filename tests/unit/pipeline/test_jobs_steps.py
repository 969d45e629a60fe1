"""How an export is cut into runs: all entries, once, in order, and none too large."""

from hypothesis import given
from hypothesis import strategies as st

from magnetar.pipeline.offsets import Offset, Offsets
from magnetar.pipeline.read_plan import EntryRange, cut_step, entry_ranges_between
from magnetar.pipeline.topic_snapshot import TopicLedger, TopicSnapshot

ENTRY = 100


def snapshot(name: str, ledgers: list[int]) -> TopicSnapshot:
    stored = tuple(
        TopicLedger(10 * number, entries, entries * ENTRY)
        for number, entries in enumerate(ledgers, 1)
    )
    return TopicSnapshot(
        name, stored, Offset(10, 0), Offset(stored[-1].ledger_id, stored[-1].entries)
    )


def walk(topics: dict[str, TopicSnapshot], bytes_max: int) -> list[dict[str, list[EntryRange]]]:
    """The pieces of each run, as `export` would read them."""
    starts: Offsets = {name: each.first for name, each in topics.items()}
    runs: list[dict[str, list[EntryRange]]] = []
    while True:
        waiting = {
            name: (pieces, each.end)
            for name, each in topics.items()
            if (pieces := entry_ranges_between(each, starts[name], each.end))
        }
        if not waiting:
            return runs
        ends, size = cut_step(waiting, bytes_max)
        assert set(ends) == set(waiting)
        run = {
            name: entry_ranges_between(topics[name], starts[name], end)
            for name, end in ends.items()
        }
        assert all(run.values()), "a run without an entry of a partition that has some"
        assert size == sum(piece.entries for pieces in run.values() for piece in pieces) * ENTRY
        starts |= ends
        runs.append(run)


ledgers = st.lists(st.integers(min_value=0, max_value=40), min_size=1, max_size=5)


@given(
    topics=st.dictionaries(st.sampled_from("abcd"), ledgers, min_size=1),
    bytes_max=st.integers(min_value=1, max_value=8_000),
)
def test_every_entry_is_in_one_run(topics: dict[str, list[int]], bytes_max: int) -> None:
    snapshots = {name: snapshot(name, each) for name, each in topics.items()}
    seen: dict[str, list[tuple[int, int]]] = {name: [] for name in topics}
    for run in walk(snapshots, bytes_max):
        size = 0
        for name, pieces in run.items():
            for piece in pieces:
                ids = [(piece.ledger.ledger_id, entry) for entry in range(piece.first, piece.end)]
                seen[name] += ids
                size += len(ids) * ENTRY
        # An entry of each partition is taken even where it is more.
        assert size <= max(bytes_max, len(run) * ENTRY) + len(run) * ENTRY
    for name, each in topics.items():
        assert seen[name] == [
            (10 * number, entry) for number, count in enumerate(each, 1) for entry in range(count)
        ]


def test_partitions_go_on_side_by_side() -> None:
    """So that a run holds about the same time of all of them."""
    topics = {"a": snapshot("a", [10]), "b": snapshot("b", [100])}
    first = walk(topics, 11 * ENTRY)[0]
    assert {name: pieces[0].entries for name, pieces in first.items()} == {"a": 1, "b": 10}


def test_what_fits_is_one_run() -> None:
    assert len(walk({"a": snapshot("a", [3, 0, 4])}, 7 * ENTRY)) == 1


def test_a_point_within_an_entry_stays() -> None:
    whole = snapshot("a", [3])
    end = Offset(10, 2, 5)
    pieces = entry_ranges_between(whole, whole.first, end)
    assert cut_step({"a": (pieces, end)}, 10**6) == ({"a": end}, 300)
    assert cut_step({"a": (pieces, end)}, 200)[0] == {"a": Offset(10, 2)}
