"""Acks that must come from several zones before an entry is confirmed."""

import random
from collections.abc import Sequence

import pytest

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.client.ledger_writer import AddsConfirmed, ChangeEnsemble, LedgerWriter
from magnetar.bookkeeper.client.pending_adds import SendAdds
from magnetar.bookkeeper.client.quorum import FaultDomainAckRule, write_sets
from magnetar.bookkeeper.ledger_metadata import EnsembleSegment, LedgerMetadata
from magnetar.bookkeeper.transport import AddRequest


def never(request: AddRequest, code: int) -> None:
    raise AssertionError("the core only hands this on")


def spread_of(bookies: Sequence[str]) -> FaultDomainAckRule:
    """The first letter is the zone; two of them are needed."""
    zones: dict[str, int] = {}
    for slot, bookie in enumerate(bookies):
        zones[bookie[0]] = zones.get(bookie[0], 0) | 1 << slot
    return FaultDomainAckRule(tuple(zones.values()), 2)


def make(quorums: tuple[int, int, int], *bookies: str) -> LedgerWriter:
    metadata = LedgerMetadata(1, *quorums, (EnsembleSegment(0, bookies),))
    return LedgerWriter(metadata, never, spread_of=spread_of)


def send(core: LedgerWriter, count: int = 1) -> dict[str, SendAdds]:
    core.append([b""] * count, [b"x"] * count)
    return {each.bookie: each for each in core.take_sends()}


def test_a_quorum_in_one_zone_is_not_enough() -> None:
    core = make((3, 3, 2), "a1", "a2", "b1")
    sent = send(core)
    core.on_add_done(sent["a1"], codes.OK)
    core.on_add_done(sent["a2"], codes.OK)
    assert core.take_effects() == []
    core.on_add_done(sent["b1"], codes.OK)
    assert core.take_effects() == [AddsConfirmed(0)]


def test_two_zones_are_enough() -> None:
    core = make((3, 3, 2), "a1", "a2", "b1")
    sent = send(core)
    core.on_add_done(sent["b1"], codes.OK)
    assert core.take_effects() == []
    core.on_add_done(sent["a2"], codes.OK)
    assert core.take_effects() == [AddsConfirmed(0)]


def test_who_is_needed_for_the_spread_is_replaced_at_once() -> None:
    """By number the quorum was there, so without the rule the failure could wait."""
    core = make((3, 3, 2), "a1", "a2", "b1")
    sent = send(core)
    core.on_add_done(sent["a1"], codes.OK)
    core.on_add_done(sent["a2"], codes.OK)
    core.on_add_done(sent["b1"], codes.UNAVAILABLE)
    assert core.take_effects() == [ChangeEnsemble(0, {2: "b1"})]
    core.on_ensemble_changed(("a1", "a2", "c1"))
    (again,) = core.take_sends()
    assert again.bookie == "c1"
    core.on_add_done(again, codes.OK)
    assert core.take_effects() == [AddsConfirmed(0)]


def test_a_new_ensemble_has_zones_of_its_own() -> None:
    """After the change all are in one zone: no more can be asked for than there is."""
    core = make((3, 3, 2), "a1", "a2", "b1")
    sent = send(core)
    core.on_add_done(sent["b1"], codes.UNAVAILABLE)
    core.take_effects()
    core.on_ensemble_changed(("a1", "a2", "a3"))
    core.take_sends()
    core.on_add_done(sent["a1"], codes.OK)
    assert core.take_effects() == []
    core.on_add_done(sent["a2"], codes.OK)
    assert core.take_effects() == [AddsConfirmed(0)]


@pytest.mark.parametrize("seed", range(40))
def test_every_confirmed_entry_of_a_striped_ledger_is_in_two_zones(seed: int) -> None:
    rng = random.Random(seed)
    bookies = ("a1", "b1", "a2", "c1", "b2", "a3")
    quorums = rng.choice([(6, 3, 2), (6, 4, 2), (6, 3, 3)])
    core = make(quorums, *bookies)
    held: set[tuple[str, int]] = set()
    waiting: list[SendAdds] = []
    for _ in range(60):
        if rng.random() < 0.4:
            waiting += send(core, rng.randint(1, 4)).values()
        elif waiting:
            request = waiting.pop(rng.randrange(len(waiting)))
            held.update((request.bookie, entry) for entry in request.entry_ids)
            core.on_add_done(request, codes.OK)
        for entry in range(core.last_confirmed + 1):
            slots = write_sets(6, quorums[1])[entry % 6]
            holders = [bookies[slot] for slot in slots if (bookies[slot], entry) in held]
            assert len(holders) >= quorums[2]
            assert len({bookie[0] for bookie in holders}) >= 2
    for request in waiting:
        core.on_add_done(request, codes.OK)
    assert core.last_confirmed == core.next_entry - 1
