"""What is typed after ``/``: a part of a name, and conditions on figures. Pure."""

from dataclasses import dataclass
from typing import Final

_VIEWS: Final[dict[str, dict[str, str]]] = {
    "subscriptions": {
        "backlog>0": "backlog",
        "consumers=0": "unconsumed",
        "trend>0": "growing",
    },
    "topics": {
        "backlog>0": "backlog",
        "consumers=0": "unconsumed",
        "rate>0": "active",
        "subscriptions=0": "noSubscription",
        "idle>7d": "idle",
        "quota>80%": "nearQuota",
    },
}
"""Condition -> ``view`` of the index, by the list's name."""


class FilterTextError(Exception):
    """The condition isn't known."""


@dataclass(frozen=True, slots=True)
class Filter:
    name: str = ""
    """Part of a name; empty: all."""
    view: str = ""
    """Of the index; empty: all."""


def parse_filter_text(text: str, view: str) -> Filter:
    """Of ``orders backlog>0``.

    Args:
        view: name of the list.
    Raises:
        FilterTextError: an unknown condition, or more than one.
    """
    words = text.split()
    conditions = [word for word in words if any(sign in word for sign in "<>=")]
    name = " ".join(word for word in words if word not in conditions)
    if not conditions:
        return Filter(name)
    known = _VIEWS.get(view, {})
    found = known.get(conditions[0].lower())
    if found is None or len(conditions) > 1:
        may = f"one of {', '.join(known)}" if known else "this list has names only"
        raise FilterTextError(f"{' '.join(conditions)}: {may}")
    return Filter(name, found)
