"""Rounds over many things: what one of them meets is not the others' business."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from logging import Logger
from types import MappingProxyType
from typing import Final, TypeAlias

Item: TypeAlias = Callable[[str], AbstractContextManager[object]]
"""``ItemPass.item``; ``nullcontext`` where a failure ends the round."""

_NONE: Final[Mapping[str, Exception]] = MappingProxyType({})


class ItemPass:
    """One round; ``item`` is entered for each thing."""

    __slots__ = ("failed",)

    def __init__(self) -> None:
        self.failed: dict[str, Exception] = {}

    @contextmanager
    def item(self, name: str) -> Iterator[None]:
        """Notes an exception raised inside and suppresses it; raises a cancellation."""
        try:
            yield
        except Exception as error:
            self.failed[name] = error


class ItemErrors:
    """All rounds of one kind. Says when things begin to fail and when that is over, not each time.

    Args:
        what: the kind, as in "expiry".
        expected: what the world does to us; anything else is a bug and logged with its traceback.
    """

    __slots__ = ("_expected", "_failed", "_logger", "_what")

    def __init__(self, what: str, logger: Logger, expected: tuple[type[Exception], ...]) -> None:
        self._what, self._logger, self._expected = what, logger, expected
        self._failed: Mapping[str, Exception] = _NONE

    @contextmanager
    def round(self) -> Iterator[ItemPass]:
        """A round; two at once are told as one after the other."""
        current = ItemPass()
        yield current
        self._tell(current.failed)

    def _tell(self, failed: dict[str, Exception]) -> None:
        begun = [name for name in failed if name not in self._failed]
        ended = [name for name in self._failed if name not in failed]
        self._failed = failed or _NONE
        if begun:
            error = failed[begun[0]]
            self._logger.warning(
                "%s: failed for %d, from now on tried in silence; %s: %s",
                *(self._what, len(begun), begun[0], str(error) or type(error).__name__),
                exc_info=None if isinstance(error, self._expected) else error,
            )
        if ended:
            self._logger.info(
                "%s: fails no longer for %d; %s", self._what, len(ended), " ".join(ended[:10])
            )
