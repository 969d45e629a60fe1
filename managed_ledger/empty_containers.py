"""The empty things of idle logs: each of ten thousand has several, and Python makes them anew.

Code that adds something puts a set or a dict of its own in the place first.
"""

from types import MappingProxyType
from typing import Any, Final, cast

NOTHING: Final[frozenset[Any]] = frozenset()
NO_ITEMS: Final = cast("dict[Any, Any]", MappingProxyType({}))
"""Where a dict is expected; an attempt to write to it raises TypeError."""
