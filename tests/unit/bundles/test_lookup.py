"""The lookup decision, over all inputs, and the owner's data."""

import itertools

import orjson
import pytest

from bundles.errors import InvalidBundleError
from bundles.lookup import BrokerLookup, LookupAction, decide_lookup


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


@pytest.mark.parametrize("value", [b"", b"[]", b"null", b"\xff"])
def test_owner_data_that_cannot_be(value: bytes) -> None:
    with pytest.raises(InvalidBundleError):
        BrokerLookup.decode(value)
