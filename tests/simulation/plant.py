"""Changes to the product's code for the time of a test, which shall notice them."""

from __future__ import annotations

from typing import Any


class Plant:
    """Changes code, and remembers what was there."""

    def __init__(self) -> None:
        self._old: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> Any:
        """The old value is returned."""
        old = vars(owner)[name]
        self._old.append((owner, name, old))
        setattr(owner, name, value)
        return old.__func__ if isinstance(old, classmethod | staticmethod) else old

    def undo(self) -> None:
        for owner, name, old in reversed(self._old):
            setattr(owner, name, old)
