"""A broker that was chosen for a bundle and dies before it owns it (F17)."""

from magnetar.metadata.embedded import EmbeddedMetadataStore
from tests.unit.loadbalance.test_manager import BUNDLES, Broker
from tests.unit.loadbalance.test_manager import base as base  # a fixture
from tests.unit.loadbalance.test_manager import brokers as brokers  # a fixture
from tests.unit.metadata.event_log import eventually_equal


async def test_f17_what_a_lost_candidate_was_chosen_for_goes_to_others(
    base: EmbeddedMetadataStore, brokers: list[Broker]
) -> None:
    """Its client's next lookup is answered with a live one, and the dead one's places are free."""
    leader = brokers[0]
    first = {bundle: (await leader.chosen(bundle))[0] for bundle in BUNDLES}
    assert set(first.values()) == {broker.name for broker in brokers}
    lost = brokers[1]
    lost.store.lose_session()
    await base.expire_session(lost.store.session_id)

    async def live() -> set[str]:
        return set(await leader.manager.registry.live())

    await eventually_equal(live, {leader.name, brokers[2].name})
    again = {bundle: await leader.chosen(bundle) for bundle in BUNDLES}
    for bundle, (name, is_authoritative) in again.items():
        assert is_authoritative
        if first[bundle] == lost.name:
            assert name != lost.name
        else:
            assert name == first[bundle], "who was told about the others stays right"
    names = [name for name, _ in again.values()]
    assert abs(names.count(leader.name) - names.count(brokers[2].name)) <= 1, "evenly again"
