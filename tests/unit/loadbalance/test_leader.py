"""One broker leads; the others know who."""

import orjson
import pytest

from magnetar.loadbalance.leader import LEADER_PATH, BrokerElection, LeaderBroker
from magnetar.metadata.embedded import EmbeddedMetadataStore
from tests.unit.metadata.event_log import EventLog, eventually, eventually_equal


class Candidate:
    def __init__(self, base: EmbeddedMetadataStore, name: str, incarnation: int = 0) -> None:
        self.store, self.log = base.new_session(), EventLog[bool]()
        self.me = LeaderBroker(f"{name}:8080", f"http://{name}:8080", incarnation)
        self.election = BrokerElection(self.store, self.me, self.log)


async def test_the_next_one_leads_when_the_leader_ends() -> None:
    base = EmbeddedMetadataStore.open(None)
    a, b = Candidate(base, "a"), Candidate(base, "b")
    assert await a.election.leader() is None
    await a.election.start()
    await b.election.start()
    assert a.log.events == [True]
    assert b.log.events == []
    node = await base.get(LEADER_PATH)
    assert node is not None
    assert node.stat.ephemeral
    assert orjson.loads(node.value) == {"brokerId": "a:8080", "serviceUrl": "http://a:8080"}
    await eventually_equal(b.election.leader, a.me)
    await base.expire_session(a.store.session_id)
    await b.log.until(lambda events: events == [True])
    assert await b.election.leader() == b.me
    await b.election.close()
    assert b.log.events == [True, False]
    assert not await base.exists(LEADER_PATH)


async def test_a_lost_session_ends_the_lead_at_once() -> None:
    """I11, F15: before the server gives the seat to another."""
    base = EmbeddedMetadataStore.open(None)
    a, b = Candidate(base, "a"), Candidate(base, "b")
    await a.election.start()
    await b.election.start()
    old = a.store.session_id
    a.store.lose_session()
    await a.log.until(lambda events: events == [True, False])
    assert not a.election.is_leader
    await base.expire_session(old)
    await b.log.until(lambda events: events == [True])
    a.store.begin_session()
    await eventually_equal(a.election.leader, b.me)
    assert a.log.events == [True, False]


async def test_a_session_that_returns_in_time_leads_on() -> None:
    base = EmbeddedMetadataStore.open(None)
    a = Candidate(base, "a")
    await a.election.start()
    a.store.lose_session()
    a.store.begin_session()
    await eventually(lambda: a.log.events == [True, False, True])
    node = await base.get(LEADER_PATH)
    assert node is not None
    assert LeaderBroker.decode(node.value) == a.me


async def test_a_process_that_was_replaced_does_not_take_the_lead_back() -> None:
    base = EmbeddedMetadataStore.open(None)
    former, later = (Candidate(base, "a", number) for number in (1, 2))
    await former.election.start()
    former.store.lose_session()
    await later.election.start()  # as what a killed process left behind
    assert later.log.events == [True]
    former.store.begin_session()
    await former.election.start()  # its look at the node is over
    node = await base.get(LEADER_PATH)
    assert node is not None
    assert orjson.loads(node.value)["incarnation"] == 2
    assert later.election.is_leader
    assert not former.election.is_leader
    assert later.log.events == [True]


@pytest.mark.parametrize(
    ("value", "leader"),
    [
        (b'{"serviceUrl":"http://h:1"}', LeaderBroker("h:1", "http://h:1")),
        (b"http://h:1", None),
        (b"[]", None),
        (b'{"brokerId":3,"serviceUrl":"http://h:1"}', None),
        (b'{"brokerId":"h:1"}', None),
    ],
)
def test_values_of_the_leaders_node(value: bytes, leader: LeaderBroker | None) -> None:
    assert LeaderBroker.decode(value) == leader
