"""Limits of a stream's batches: counted in messages and bytes, taken in entries."""

from hypothesis import given
from hypothesis import strategies as st

from magnetar.pipeline.read_plan import BatchQuota, EntryIterator, shares_of

_ENTRIES = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 2000)), min_size=1, max_size=60)


@given(
    _ENTRIES,
    st.none() | st.integers(1, 500),
    st.none() | st.integers(1, 20_000),
    st.integers(1, 60),
)
def test_a_walk_stops_at_the_last_entry_that_fits(
    entries: list[tuple[int, int]], messages: int | None, size: int | None, step: int
) -> None:
    walk = EntryIterator(BatchQuota(messages, size))
    taken = 0
    for at in range(0, len(entries), step):
        counts, sizes = zip(*entries[at : at + step], strict=True)
        taken += walk.take(counts, sizes)
        if walk.is_full:
            break
    assert taken == walk.entries >= 1
    assert walk.messages == sum(count for count, _ in entries[:taken])
    assert walk.size == sum(each for _, each in entries[:taken])
    if taken > 1:
        assert messages is None or walk.messages <= messages
        assert size is None or walk.size <= size
    if taken < len(entries):
        count, each = entries[taken]
        assert walk.is_full
        assert (messages is not None and walk.messages + count > messages) or (
            size is not None and walk.size + each > size
        )


@given(
    st.dictionaries(
        st.text(max_size=3), st.tuples(st.integers(1, 1000), st.integers(1, 10**6)), min_size=1
    ),
    st.integers(1, 10**6),
)
def test_nobody_starves_and_shares_stay_within_the_limit(
    available: dict[str, tuple[int, int]], limit: int
) -> None:
    shares = shares_of(available, limit, 0)
    assert shares.keys() == available.keys()
    counts = [share.messages for share in shares.values()]
    assert all(count is not None and count >= 1 for count in counts)
    assert sum(count or 0 for count in counts) <= max(limit, 0) + len(available)
    assert all(share.size is None for share in shares.values())


def test_shares_go_by_what_waits() -> None:
    shares = shares_of({"a": (90, 9000), "b": (10, 1000)}, 100, 500)
    assert shares == {"a": BatchQuota(90, 450), "b": BatchQuota(10, 50)}
