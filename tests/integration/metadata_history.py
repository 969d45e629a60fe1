"""A register whose value is its whole history: who wrote what is read off its end."""

import asyncio

from magnetar.metadata.errors import MetadataError, OutcomeUnknownError, SessionLostError
from magnetar.metadata.store import MetadataStore

PATH = "/register"


class History:
    """What the writers were told; each appends its own words, by compare-and-set, to what it read.

    A word is acknowledged with its version, refused, or in doubt. At the end the value must have an
    acknowledged word exactly at its version, no refused one, and each at most once.
    """

    def __init__(self) -> None:
        self.written: dict[str, int] = {}  # word -> version
        self.unknown: set[str] = set()
        self.refused: set[str] = set()

    async def write(self, store: MetadataStore, name: str, count: int) -> None:
        for number in range(count):
            word = f"{name}.{number}"
            try:
                found = await store.get(PATH)
                assert found is not None
                version, value = found.stat.version, found.value
                assert value.count(b" ") == version
                written = await store.put(PATH, value + word.encode() + b" ", version)
                assert written.stat.version == version + 1
                self.written[word] = version + 1
            except OutcomeUnknownError:
                self.unknown.add(word)
            except MetadataError as error:
                self.refused.add(word)
                if isinstance(error, SessionLostError):
                    await asyncio.sleep(0.05)

    async def check(self, store: MetadataStore) -> None:
        found = await store.get(PATH)
        assert found is not None
        words = found.value.decode().split()
        assert len(set(words)) == len(words) == found.stat.version
        for word, version in self.written.items():
            assert words[version - 1] == word
        assert not self.refused & set(words)
        assert set(words) <= set(self.written) | self.unknown
        assert len(self.written) > 20, (len(self.written), len(self.unknown), len(self.refused))
