"""The menu: where its entries lead to."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Link:
    """An entry of the menu."""

    key: str
    path: str
    title: str
    short: str = ""


MENU: Final = (
    (
        "Cluster",
        (
            Link("overview", "", "Overview", "Overview"),
            Link("brokers", "brokers", "Brokers"),
            Link("bookies", "bookies", "Bookies"),
        ),
    ),
    (
        "Data",
        (
            Link("namespaces", "namespaces", "Namespaces"),
            Link("topics", "topics", "Topics", "Topics"),
            Link("subscriptions", "subscriptions", "Subscriptions", "Subs"),
            Link("messages", "messages", "Messages", "Messages"),
            Link("schemas", "schemas", "Schemas"),
            Link("transactions", "transactions", "Transactions"),
        ),
    ),
    (
        "Access",
        (
            Link("roles", "roles", "Roles"),
            Link("settings", "settings", "Settings"),
            Link("audit", "audit", "Audit"),
        ),
    ),
)
