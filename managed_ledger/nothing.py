"""The one empty set: of ten thousand idle logs each has several, and Python makes each anew."""

from __future__ import annotations

from typing import Any, Final

NOTHING: Final[frozenset[Any]] = frozenset()
