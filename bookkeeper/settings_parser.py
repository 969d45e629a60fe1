"""Settings classes out of keys and texts, as files, environments and command lines bring them.

A settings class is a frozen dataclass of str, int, float and bool; its attribute names are the keys
in snake case: ``journalMaxSizeMB`` -> ``journal_max_size_mb``. Keys are compared without case and
punctuation, so both forms may be written anywhere.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, get_type_hints

from magnetar.bookkeeper.environment import normalize_key, settings_among

_TRUE: Final = frozenset({"true", "1", "yes", "on"})
_FALSE: Final = frozenset({"false", "0", "no", "off"})


class SettingsParser:
    """The keys of one settings class.

    Args:
        aliases: other names, squeezed (see ``normalize_key``) -> attribute.
        error: raised for a value that doesn't fit.
    """

    def __init__(
        self, settings: type[Any], aliases: Mapping[str, str], error: type[ValueError]
    ) -> None:
        self._types = get_type_hints(settings)
        self._defaults = {each.name: each.default for each in dataclasses.fields(settings)}
        self._field_of_key = {
            **{normalize_key(name): name for name in self._defaults},
            **{normalize_key(key): name for key, name in aliases.items()},
        }
        self._error = error

    def knows(self, key: str) -> bool:
        return normalize_key(key) in self._field_of_key

    def parse(self, sources: Iterable[Mapping[str, str]]) -> tuple[dict[str, Any], set[str]]:
        """Values by attribute, a later source wins; and the keys that aren't in the class.

        Raises:
            ValueError: of the class's own kind: a value doesn't fit its key.
        """
        values: dict[str, Any] = {}
        unknown: set[str] = set()
        for pairs in sources:
            for key, text in pairs.items():
                name = self._field_of_key.get(normalize_key(key))
                if name is None:
                    unknown.add(key)
                else:
                    values[name] = self._parse(name, key, text)
        return values, unknown

    def environment(self, variables: Mapping[str, str], prefixes: Iterable[str]) -> dict[str, str]:
        """The settings among environment variables; a later prefix wins.

        Raises:
            ValueError: of the class's own kind: variables that contradict each other.
        """
        with raising(self._error):
            return settings_among(variables, prefixes, self.knows)

    def _parse(self, name: str, key: str, text: str) -> object:
        kind = self._types[name]
        try:
            is_default = text == "" and kind not in (str, bool)
            return self._defaults[name] if is_default else value_of(kind, text)
        except ValueError as error:
            raise self._error(f"{key}={text!r}: {error}") from error


@contextmanager
def raising(error: type[ValueError]) -> Iterator[None]:
    """Any ValueError becomes one of the kind ``error``; with, or in front of a method."""
    try:
        yield
    except error:
        raise
    except ValueError as other:
        raise error(str(other)) from other


def value_of(kind: type[Any], text: str) -> object:
    """A str, int, float or bool out of a text.

    Raises:
        ValueError: it isn't one.
    """
    if kind is not bool:
        return kind(text)
    if text.lower() not in _TRUE | _FALSE:
        raise ValueError("not true or false")
    return text.lower() in _TRUE
