"""Orders: bundles that are given to another broker, or cut, by whoever owns them."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from magnetar.bundles.bundle_commands import COMMANDS_ROOT, BundleCommand, BundleCommandQueue
from magnetar.bundles.errors import BundleNotReadyError
from magnetar.bundles.lookup import BrokerLookup
from magnetar.metadata.embedded import EmbeddedMetadataStore
from tests.unit.bundles.test_ownership import TOPIC
from tests.unit.bundles.test_policy import Chosen
from tests.unit.metadata.event_log import eventually, eventually_equal

ANSWER_S = 60.0


class Member(Chosen):
    """A broker of a cluster: ``live`` is what it believes to be there."""

    def __init__(
        self, base: EmbeddedMetadataStore, name: str, live: dict[str, BrokerLookup]
    ) -> None:
        super().__init__(base, name)
        self.name, self.live = name, live
        self.cut: list[tuple[str, str, bool]] = []
        live[name] = self.lookup
        self.orders = BundleCommandQueue(self.store, self.service, name, self._find, self._cut)

    async def _find(self, broker_id: str) -> BrokerLookup | None:
        return self.live.get(broker_id)

    async def _cut(self, bundle: str, algorithm: str, unload: bool) -> None:
        self.cut.append((bundle, algorithm, unload))
        if algorithm == "impossible":
            raise BundleNotReadyError(bundle, "its topics can't be listed")


@pytest.fixture
async def members(base: EmbeddedMetadataStore) -> AsyncIterator[list[Member]]:
    live: dict[str, BrokerLookup] = {}
    made = [Member(base, name, live) for name in "abc"]
    yield made
    for each in made:
        await each.orders.close()


async def no_order_is_left(base: EmbeddedMetadataStore) -> None:
    await eventually_equal(lambda: base.children(COMMANDS_ROOT), [])


@pytest.mark.parametrize(
    "command",
    [
        BundleCommand("t/n/0x00000000_0x40000000", "h:1", "[::1]:2"),
        BundleCommand("t/a b%|c/0x00000000_0x40000000".replace("|", "-"), "h:1"),
        BundleCommand("t/n/0x00000000_0x40000000", "h:1", algorithm="range_equally_divide"),
        BundleCommand("t/n/0x00000000_0x40000000", "h:1", "[::1]:2", epoch=12),
        BundleCommand("t/n/0x00000000_0x40000000", "h:1", algorithm="a", unload=True, epoch=1),
        BundleCommand("t/n/0x0_0x1", "h:1", algorithm="topic_count_equally_divide", unload=True),
    ],
)
def test_a_nodes_name_says_all(command: BundleCommand) -> None:
    assert BundleCommand.of_path(command.path) == command


@pytest.mark.parametrize("name", ["", "/x", "/move%7Ca%7Cb", "/burn%7Ca%7Cb%7Cc"])
def test_other_nodes_are_no_orders(name: str) -> None:
    assert BundleCommand.of_path(f"{COMMANDS_ROOT}{name}") is None


async def test_a_leader_moves_a_bundle_from_one_to_another(
    base: EmbeddedMetadataStore, members: list[Member]
) -> None:
    a, b, leader = members
    bundle = (await a.service.acquire(TOPIC)).bundle
    a.hold_unload = asyncio.Event()
    moving = asyncio.ensure_future(leader.orders.give(BundleCommand(bundle, "a", "b"), ANSWER_S))
    await a.unloaded.until(lambda bundles: bundles == [bundle])
    assert a.service.new_owner(bundle) == b.lookup
    await eventually(lambda: all(each.orders.promised_to(bundle) == "b" for each in members))
    assert not moving.done()
    a.hold_unload.set()
    assert await moving
    assert b.service.owns_nowait(TOPIC)
    assert a.service.owned_bundles == []
    await no_order_is_left(base)
    await eventually(lambda: all(each.orders.promised_to(bundle) is None for each in members))


async def test_a_move_to_nobody_in_particular(
    base: EmbeddedMetadataStore, members: list[Member]
) -> None:
    a, b, _ = members
    bundle = (await a.service.acquire(TOPIC)).bundle
    assert await b.orders.give(BundleCommand(bundle, "a"), ANSWER_S)
    assert await b.service.owner_of(TOPIC) is None
    await no_order_is_left(base)


async def test_the_owner_itself_may_give_the_order(members: list[Member]) -> None:
    a, b, _ = members
    bundle = (await a.service.acquire(TOPIC)).bundle
    assert await a.orders.give(BundleCommand(bundle, "a", "b"), ANSWER_S)
    assert b.service.owns_nowait(TOPIC)


async def test_who_stops_hands_over_what_it_has(
    base: EmbeddedMetadataStore, members: list[Member]
) -> None:
    a, b, _ = members
    bundle = (await a.service.acquire(TOPIC)).bundle
    a.hold_unload = asyncio.Event()
    command = BundleCommand(bundle, "a", "b")
    going = asyncio.ensure_future(a.orders.hand_over(command, ANSWER_S))
    await a.unloaded.until(lambda bundles: bundles == [bundle])
    assert a.service.new_owner(bundle) == b.lookup, "clients are told"
    assert not await a.orders.hand_over(command, ANSWER_S), "it is under way"
    a.hold_unload.set()
    assert await going
    assert b.service.owns_nowait(TOPIC)
    assert a.unloaded.events == [bundle], "once"
    await no_order_is_left(base)


async def test_who_stops_waits_for_nobody_who_stops_as_well(
    base: EmbeddedMetadataStore, members: list[Member]
) -> None:
    a, b, c = members
    bundle = (await a.service.acquire(TOPIC)).bundle
    b.orders.refuse()
    assert await a.orders.hand_over(BundleCommand(bundle, "a", "b"), ANSWER_S)
    assert a.service.owned_bundles == b.service.owned_bundles == []
    bundle = (await a.service.acquire(TOPIC)).bundle
    await c.orders.close()  # it hears of no orders any more
    assert await a.orders.hand_over(BundleCommand(bundle, "a", "c"), 0.1)
    assert a.service.owned_bundles == []
    await no_order_is_left(base)


async def test_what_is_not_there_is_not_handed_over(
    base: EmbeddedMetadataStore, members: list[Member]
) -> None:
    a, b, _ = members
    bundle = (await b.service.acquire(TOPIC)).bundle
    assert not await a.orders.hand_over(BundleCommand(bundle, "a", "c"), ANSWER_S)
    assert not await a.orders.hand_over(BundleCommand(bundle, "a", "nobody"), ANSWER_S)
    assert b.service.owns_nowait(TOPIC)
    await no_order_is_left(base)


async def test_who_does_not_own_it_does_nothing(
    base: EmbeddedMetadataStore, members: list[Member]
) -> None:
    """I29: the view of a leader that was deposed may be old."""
    _, b, c = members
    bundle = (await b.service.acquire(TOPIC)).bundle
    assert await c.orders.give(BundleCommand(bundle, "a", "c"), ANSWER_S), "it isn't a's"
    assert b.service.owns_nowait(TOPIC)
    assert b.unloaded.events == []
    await no_order_is_left(base)
    await eventually(lambda: not c.service._expected)


async def test_a_destination_that_is_gone_gets_nothing(members: list[Member]) -> None:
    a, _, c = members
    bundle = (await a.service.acquire(TOPIC)).bundle
    del c.live["b"]
    assert not await c.orders.give(BundleCommand(bundle, "a", "b"), ANSWER_S)
    assert a.service.owns_nowait(TOPIC)
    assert a.unloaded.events == []


async def test_two_leaders_move_a_bundle_once(
    base: EmbeddedMetadataStore, members: list[Member]
) -> None:
    """F15: whoever gets it, one broker does, and the other gives up waiting."""
    a, b, c = members
    bundle = (await a.service.acquire(TOPIC)).bundle
    moved = await asyncio.gather(
        b.orders.give(BundleCommand(bundle, "a", "b"), ANSWER_S),
        c.orders.give(BundleCommand(bundle, "a", "c"), ANSWER_S),
    )
    assert any(moved)
    assert a.unloaded.events == [bundle]
    await no_order_is_left(base)
    await eventually(lambda: not (b.service._expected or c.service._expected))
    assert [each.name for each in members if each.service.owns_nowait(TOPIC)] in (["b"], ["c"])


async def test_the_same_order_twice_is_one(members: list[Member]) -> None:
    a, b, c = members
    bundle = (await a.service.acquire(TOPIC)).bundle
    command = BundleCommand(bundle, "a", "b")
    results = await asyncio.gather(
        c.orders.give(command, ANSWER_S), b.orders.give(command, ANSWER_S)
    )
    assert True in results
    assert a.unloaded.events == [bundle]
    assert b.service.owns_nowait(TOPIC)


async def test_an_order_ends_with_the_session_of_who_gave_it(
    base: EmbeddedMetadataStore, members: list[Member]
) -> None:
    a, b, leader = members
    bundle = (await a.service.acquire(TOPIC)).bundle
    a.orders._watches[0].close()  # it hears nothing: the order stays open
    moving = asyncio.ensure_future(leader.orders.give(BundleCommand(bundle, "a", "b"), ANSWER_S))
    await eventually(lambda: bool(b.service._expected))
    await base.expire_session(leader.store.session_id)
    await eventually(lambda: not b.service._expected)
    assert a.service.owns_nowait(TOPIC)
    assert not await moving


async def test_an_order_without_an_answer_is_taken_back(
    base: EmbeddedMetadataStore, members: list[Member]
) -> None:
    a, b, leader = members
    bundle = (await a.service.acquire(TOPIC)).bundle
    await a.orders.close()
    assert not await leader.orders.give(BundleCommand(bundle, "a", "b"), 0.01)
    await no_order_is_left(base)
    await eventually(lambda: not b.service._expected)
    assert a.service.owns_nowait(TOPIC)


async def test_what_was_ordered_during_an_outage_is_found_afterwards(
    base: EmbeddedMetadataStore, members: list[Member]
) -> None:
    a, b, leader = members
    bundle = (await a.service.acquire(TOPIC)).bundle
    for each in (a, b):
        each.store.lose_session()
    moving = asyncio.ensure_future(leader.orders.give(BundleCommand(bundle, "a", "b"), ANSWER_S))
    while not await base.children(COMMANDS_ROOT):  # noqa: ASYNC110 # another session's write
        await asyncio.sleep(0.001)
    assert not moving.done()
    for each in (a, b):
        each.store.begin_session()
    assert await moving
    assert b.service.owns_nowait(TOPIC)


async def test_a_split_is_ordered_from_the_owner(
    base: EmbeddedMetadataStore, members: list[Member]
) -> None:
    a, _, leader = members
    bundle = (await a.service.acquire(TOPIC)).bundle
    algorithm = "range_equally_divide"
    await leader.orders.give(BundleCommand(bundle, "a", algorithm=algorithm, unload=True), ANSWER_S)
    assert a.cut == [(bundle, algorithm, True)]
    assert not await leader.orders.give(
        BundleCommand(bundle, "a", algorithm="impossible"), ANSWER_S
    )
    await no_order_is_left(base)


async def test_an_order_of_a_leader_that_was_deposed_is_refused(
    base: EmbeddedMetadataStore, members: list[Member]
) -> None:
    """I29, F35: by its source and by its destination; one of the leader of now is carried out."""
    a, b, c = members
    asked: list[int] = []

    async def accepts(epoch: int) -> bool:
        asked.append(epoch)
        return epoch >= 7

    for each in members:
        each.orders._accepts = accepts
    bundle = (await a.service.acquire(TOPIC)).bundle
    for epoch in (0, 6):
        assert not await c.orders.give(BundleCommand(bundle, "a", "b", epoch=epoch), ANSWER_S)
        assert not await c.orders.give(
            BundleCommand(bundle, "a", algorithm="range_equally_divide", epoch=epoch), ANSWER_S
        )
        await no_order_is_left(base)
    assert a.service.owned_bundles == [bundle]
    assert a.cut == []
    assert b.service.owned_bundles == []
    assert await c.orders.give(BundleCommand(bundle, "a", "b", epoch=7), ANSWER_S)
    await eventually_equal(lambda: owned(b), [bundle])
    assert {0, 6, 7} <= set(asked)


async def owned(member: Member) -> list[str]:
    return member.service.owned_bundles
