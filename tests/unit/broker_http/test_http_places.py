"""Every route has its place in a cluster, and nobody is sent there twice for nothing."""

from __future__ import annotations

import pytest

from magnetar.broker.cluster.broker_client import as_authoritative
from magnetar.broker.http.routing.request_routing import RoutingMode, routing_mode_of
from tests.unit.broker_http.test_http_access import all_routes, make_app

A = "/admin/v2"
TOPIC = A + "/{domain:domain}/{tenant}/{namespace}/{topic}"
NAMESPACE = A + "/namespaces/{tenant}/{namespace}"


def test_every_route_has_a_place() -> None:
    missing = [
        f"{method} {template}"
        for method, template in all_routes(make_app())
        if method != "OPTIONS" and routing_mode_of(method, template) is None
    ]
    assert missing == []


@pytest.mark.parametrize(
    ("method", "template", "place"),
    [
        ("GET", "/metrics", RoutingMode.LOCAL),
        ("PUT", TOPIC, RoutingMode.TOPIC),
        ("GET", TOPIC + "/stats", RoutingMode.TOPIC),
        ("HEAD", TOPIC + "/stats", RoutingMode.TOPIC),
        ("PUT", TOPIC + "/unload", RoutingMode.TOPIC),
        ("POST", TOPIC + "/subscription/{subscription}/skip_all", RoutingMode.TOPIC),
        ("GET", TOPIC + "/partitioned-stats", RoutingMode.LOCAL),
        ("PUT", TOPIC + "/partitions", RoutingMode.LOCAL),
        ("GET", TOPIC + "/retention", RoutingMode.LOCAL),
        ("POST", "/topics/{domain}/{tenant}/{namespace}/{topic}", RoutingMode.OWNER_IF_LOADED),
        (
            "POST",
            "/topics/{domain}/{tenant}/{namespace}/{topic}/subscription/{subscription}/ack",
            RoutingMode.HASHED,
        ),
        ("PUT", NAMESPACE + "/{bundle}/unload", RoutingMode.BUNDLE),
        ("POST", NAMESPACE + "/{bundle}/clearBacklog/{subscription}", RoutingMode.ACQUIRE),
        ("DELETE", NAMESPACE + "/{bundle}", RoutingMode.ACQUIRE),
        ("PUT", NAMESPACE + "/unload", RoutingMode.SCATTER),
        ("POST", NAMESPACE + "/retention", RoutingMode.LOCAL),
        ("GET", A + "/brokers/{cluster}/{broker}/ownedNamespaces", RoutingMode.BROKER),
        ("GET", A + "/brokers/leaderBroker", RoutingMode.LOCAL),
        ("GET", "/somewhere/else", None),
    ],
)
def test_places(method: str, template: str, place: RoutingMode | None) -> None:
    assert routing_mode_of(method, template) is place


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
