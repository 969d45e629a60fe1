"""Every route has its place in a cluster, and nobody is sent there twice for nothing."""

from __future__ import annotations

import pytest

from broker.http.places import Place, place_of
from broker.service.peers import as_authoritative
from tests.unit.broker_http.test_http_access import all_routes, make_app

A = "/admin/v2"
TOPIC = A + "/{domain:domain}/{tenant}/{namespace}/{topic}"
NAMESPACE = A + "/namespaces/{tenant}/{namespace}"


def test_every_route_has_a_place() -> None:
    missing = [
        f"{method} {template}"
        for method, template in all_routes(make_app())
        if method != "OPTIONS" and place_of(method, template) is None
    ]
    assert missing == []


@pytest.mark.parametrize(
    ("method", "template", "place"),
    [
        ("GET", "/metrics", Place.HERE),
        ("PUT", TOPIC, Place.TOPIC),
        ("GET", TOPIC + "/stats", Place.TOPIC),
        ("HEAD", TOPIC + "/stats", Place.TOPIC),
        ("PUT", TOPIC + "/unload", Place.TOPIC),
        ("POST", TOPIC + "/subscription/{subscription}/skip_all", Place.TOPIC),
        ("GET", TOPIC + "/partitioned-stats", Place.HERE),
        ("PUT", TOPIC + "/partitions", Place.HERE),
        ("GET", TOPIC + "/retention", Place.HERE),
        ("POST", "/topics/{domain}/{tenant}/{namespace}/{topic}", Place.LOADED),
        (
            "POST",
            "/topics/{domain}/{tenant}/{namespace}/{topic}/subscription/{subscription}/ack",
            Place.HOME,
        ),
        ("PUT", NAMESPACE + "/{bundle}/unload", Place.BUNDLE),
        ("POST", NAMESPACE + "/{bundle}/clearBacklog/{subscription}", Place.HELD),
        ("DELETE", NAMESPACE + "/{bundle}", Place.HELD),
        ("PUT", NAMESPACE + "/unload", Place.OWNERS),
        ("POST", NAMESPACE + "/retention", Place.HERE),
        ("GET", A + "/brokers/{cluster}/{broker}/ownedNamespaces", Place.BROKER),
        ("GET", A + "/brokers/leaderBroker", Place.HERE),
        ("GET", "/somewhere/else", None),
    ],
)
def test_places(method: str, template: str, place: Place | None) -> None:
    assert place_of(method, template) is place


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "authoritative=true"),
        ("authoritative=false", "authoritative=true"),
        ("force=true&authoritative=false&x=%20", "force=true&x=%20&authoritative=true"),
    ],
)
def test_who_is_chosen_is_told_so(before: str, after: str) -> None:
    assert as_authoritative(before) == after
