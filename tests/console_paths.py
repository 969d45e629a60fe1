"""Addresses of the console's pages, for tests that look at each of them."""

import re
from collections.abc import Mapping
from typing import Final

_ACTIONS: Final = {
    "topic": "unload",
    "setting": "set",
    "namespace": "unload",
    "tenant": "change",
    "list:topics": "create-topic",
}


def path_of(page: str, names: Mapping[str, str]) -> str:
    """Of a key of ``PAGES``, with these names in it."""
    places = [action for name, action in _ACTIONS.items() if f"{{{name}}}" in page]
    parts = {"action": places[0] if places else "create-tenant", **names}
    return re.sub(r"\{(\w+)(?::([\w-]+)[\w|-]*)?\}", lambda m: m[2] or parts[m[1]], page)
