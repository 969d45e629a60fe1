"""Names that are like one that a cluster doesn't have."""

import json
from collections.abc import Mapping
from typing import Any, cast

import pytest

from magnetar.broker.cli.admin_client import AdminClient
from magnetar.broker.cli.admin_commands import AdminCommand
from magnetar.broker.cli.errors import RefusedError
from magnetar.broker.cli.names import ClusterNames, hint_on, like
from magnetar.broker.cli.request import Arguments

BASE = "persistent://acme/eu/"
CLUSTER = {
    "tenants": ["acme", "public"],
    "namespaces/acme": ["acme/eu", "acme/us"],
    "persistent/acme/eu": [f"{BASE}{name}" for name in ("orders", "bills-partition-0")],
    "persistent/acme/eu/partitioned": [f"{BASE}bills"],
    "persistent/acme/eu/orders/subscriptions": ["billing", "audit"],
    "namespaces/public": None,
}


class Cluster:
    """Answers as an `AdminClient`; what is None or missing is refused."""

    def __init__(self, known: Mapping[str, Any] = CLUSTER) -> None:
        self._known = known

    def json(self, method: str, path: str) -> Any:
        value = self._known.get(path.removeprefix("/admin/v2/"))
        if method != "GET" or value is None:
            raise RefusedError("HTTP 403", 403)
        return json.loads(json.dumps(value))


def names(known: Mapping[str, Any] = CLUSTER) -> ClusterNames:
    return ClusterNames(cast("AdminClient", Cluster(known)))


@pytest.mark.parametrize(
    ("given", "options", "said"),
    [
        ({"tenant": "acne"}, {}, "There is no tenant acne. Names like it: acme"),
        (
            {"namespace": "acme/asia"},
            {},
            "There is no namespace asia in acme. There are: eu, us",
        ),
        ({"topic": "acme/eu/order"}, {}, "no topic order in acme/eu. Names like it: orders"),
        ({"topic": "acme/eu/bill"}, {}, "There is no topic bill in acme/eu. Names like it: bills"),
        ({"topic": "acme/eu/bills-partition-7"}, {}, ""),
        (
            {"topic": "acme/eu/orders", "subscription": "biling"},
            {},
            "There is no subscription biling in acme/eu/orders. Names like it: billing",
        ),
        (
            {"topic": "acme/eu/orders"},
            {"path:subscription": "x"},
            "There is no subscription x in acme/eu/orders. There are: audit, billing",
        ),
        ({"topic": "acme/eu/orders", "subscription": "billing"}, {}, ""),
        ({"topic": "public/default/x"}, {}, ""),
    ],
)
def test_the_outermost_name_that_is_missing_is_named(
    given: dict[str, str], options: dict[str, str], said: str
) -> None:
    arguments = Arguments(AdminCommand("GET", (), ""), given, options)
    hint = hint_on(names(), arguments)
    assert said in hint
    assert bool(said) == bool(hint)


def test_what_may_not_be_listed_is_left_out() -> None:
    arguments = Arguments(AdminCommand("GET", (), ""), {"topic": "acme/eu/order"}, {})
    known = {name: value for name, value in CLUSTER.items() if name != "tenants"}
    assert "Names like it: orders" in hint_on(names(known), arguments)
    assert hint_on(names({}), arguments) == ""


def test_many_names_are_not_listed() -> None:
    known = [f"t{number}" for number in range(1000)]
    assert like("topic", "orders", "a/b", known).endswith("there are 1000.")
    assert like("topic", "T99", "a/b", known) == (
        "There is no topic T99 in a/b. Names like it: t99, t990, t991, t992, t993"
    )
    assert like("topic", "x", "a/b", []) == "There is no topic x in a/b, nor any other."
