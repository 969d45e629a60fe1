"""The lookup decision, over all inputs, and the owner's data."""

import itertools

import orjson
import pytest

from magnetar.bundles.errors import InvalidBundleError
from magnetar.bundles.lookup import BrokerLookup, LookupAction, decide_lookup


def test_the_decision_over_all_inputs() -> None:
    for owner, here, unloading, proven, read_only, told in itertools.product(
        (False, True), repeat=6
    ):
        if unloading or not proven:
            wanted = LookupAction.NOT_READY
        elif owner or here:
            wanted = LookupAction.ANSWER_OWNER
        elif read_only:
            wanted = LookupAction.ANSWER_NOBODY
        else:
            wanted = LookupAction.ACQUIRE if told else LookupAction.CHOOSE
        assert wanted is decide_lookup(
            owner_known=owner,
            owned_here=here,
            unloading=unloading,
            session_proven=proven,
            read_only=read_only,
            authoritative=told,
        )


def test_owner_data_has_pulsars_field_names() -> None:
    broker = BrokerLookup(
        "pulsar://h:6650",
        None,
        "http://h:8080",
        None,
        {"internal": {"brokerServiceUrl": "pulsar://i:6650"}},
    )
    assert orjson.loads(broker.encode()) == {
        "nativeUrl": "pulsar://h:6650",
        "nativeUrlTls": None,
        "httpUrl": "http://h:8080",
        "httpUrlTls": None,
        "disabled": False,
        "advertisedListeners": {"internal": {"brokerServiceUrl": "pulsar://i:6650"}},
    }
    assert BrokerLookup.decode(broker.encode()) == broker


def test_of_two_processes_with_the_same_urls_the_later_is_the_successor() -> None:
    first, later = (BrokerLookup("pulsar://h", None, None, None, {}, n) for n in (3, 4))
    other = BrokerLookup("pulsar://i", None, None, None, {}, 1)
    assert BrokerLookup.decode(later.encode()).incarnation == 4
    assert first == later
    for broker in (first, later):
        assert broker.is_successor_of(broker.encode())
        assert not broker.is_successor_of(other.encode())
        assert not broker.is_successor_of(b"no owner")
        # Written by a version that doesn't count its starts
        assert broker.is_successor_of(BrokerLookup("pulsar://h", None, None, None).encode())
    assert later.is_successor_of(first.encode())
    assert not first.is_successor_of(later.encode())


@pytest.mark.parametrize("value", [b"", b"[]", b"null", b"\xff"])
def test_owner_data_that_cannot_be(value: bytes) -> None:
    with pytest.raises(InvalidBundleError):
        BrokerLookup.decode(value)
