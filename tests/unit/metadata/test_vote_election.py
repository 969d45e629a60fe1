"""The election of BookKeeper's auditors."""

from collections.abc import AsyncIterator

import pytest

from magnetar.metadata.coordination import LeaderState
from magnetar.metadata.embedded import EmbeddedMetadataStore
from magnetar.metadata.errors import OutcomeUnknownError
from magnetar.metadata.store import Versioned
from magnetar.metadata.vote_election import VoteElection, read_leader
from tests.waiting import eventually

SEAT = "/seat"


class LosesAnswers(EmbeddedMetadataStore):
    lost = 0

    async def put(self, path: str, *rest: object, **more: object) -> Versioned:
        node = await super().put(path, *rest, **more)  # type: ignore[arg-type]
        if self.lost:
            self.lost -= 1
            raise OutcomeUnknownError(path)
        return node


@pytest.fixture
async def store() -> AsyncIterator[LosesAnswers]:
    store = LosesAnswers.open(None)
    assert isinstance(store, LosesAnswers)
    yield store
    await store.close()


def candidate(store: EmbeddedMetadataStore, name: bytes) -> VoteElection:
    return VoteElection(store, SEAT, name, lambda _: None)


async def test_the_oldest_vote_wins(store: LosesAnswers) -> None:
    sessions = [store.new_session() for _ in range(3)]
    elections = [candidate(s, b"c%d" % n) for n, s in enumerate(sessions)]
    states = [await each.elect() for each in elections]
    assert states == [LeaderState.LEADING, LeaderState.FOLLOWING, LeaderState.FOLLOWING]
    assert await store.children(SEAT) == ["V_0000000000", "V_0000000001", "V_0000000002"]
    seat = await store.get(SEAT)
    assert seat is not None
    assert (seat.value, seat.stat.ephemeral) == (b"c0", False)

    await elections[1].close()  # of those that wait
    assert elections[0].state is LeaderState.LEADING
    await elections[0].close()
    await eventually(lambda: elections[2].state is LeaderState.LEADING)
    assert await elections[2].leader() == b"c2"
    await elections[2].close()
    assert await store.children(SEAT) == []
    assert await read_leader(store, SEAT) is None
    seat = await store.get(SEAT)
    assert seat is not None
    assert seat.value == b"c2"


async def test_a_lost_session_votes_again(store: LosesAnswers) -> None:
    session, other = store.new_session(), store.new_session()
    first, second = candidate(session, b"first"), candidate(other, b"second")
    await first.elect()
    await second.elect()
    old = session.session_id
    session.lose_session()
    left = first.state
    assert left is LeaderState.NO_LEADER
    session.begin_session()
    await session.expire_session(old)
    await eventually(lambda: second.state is LeaderState.LEADING)
    await eventually(lambda: first.state is LeaderState.FOLLOWING)
    assert len(await store.children(SEAT)) == 2
    for each in (first, second):
        await each.close()


@pytest.mark.parametrize("lost", [1, 2])
async def test_a_lost_answer_makes_no_second_vote(store: LosesAnswers, lost: int) -> None:
    election = candidate(store, b"only")
    store.lost = lost
    assert await election.elect() is LeaderState.NO_LEADER
    await eventually(lambda: election.state is LeaderState.LEADING)
    assert await store.children(SEAT) == ["V_0000000000"]
    await election.close()
