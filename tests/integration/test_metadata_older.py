"""Embedded metadata that don't belong to the bookie's directory beside them: another moment's or
another store's. A copy of the whole data directory is fine."""

import shutil
from pathlib import Path

import pytest

from magnetar.metadata.embedded import EmbeddedMetadataStore
from tests.integration.failure_tools import check_history, keep, new_topic, publish
from tests.raw_client import Position
from tests.standalone_process import StandaloneProcess


class Grown:
    """A data directory, and copies of it of before its last ledgers.

    Attributes:
        of_before: consistent copy of the whole data directory.
        receipts: topic -> its messages; ``early`` of those that the copy has.
    """

    def __init__(self, tmp_path: Path) -> None:
        self.process = StandaloneProcess(tmp_path / "data")
        self.of_before = tmp_path / "of-before"
        self.receipts: dict[str, dict[int, Position]] = {}

    def write(self) -> None:
        topic = new_topic()
        keep(self.process.service_url, topic)
        self.receipts[topic] = publish(self.process.service_url, topic, range(50))

    def check(self, receipts: dict[str, dict[int, Position]]) -> None:
        for topic, positions in receipts.items():
            check_history(self.process.service_url, topic, positions)


def grow(tmp_path: Path, *, killed: bool) -> tuple[Grown, dict[str, dict[int, Position]]]:
    grown = Grown(tmp_path)
    grown.process.start()
    grown.write()
    assert grown.process.stop() == 0
    shutil.copytree(grown.process.data, grown.of_before)
    early = dict(grown.receipts)
    grown.process.start()
    grown.write()
    if killed:
        grown.process.kill()  # what the bookie has seen is in its journal
    else:
        assert grown.process.stop() == 0  # in its index
    return grown, early


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_metadata_older_than_the_bookie_are_refused(tmp_path: Path, killed: bool) -> None:
    grown, early = grow(tmp_path, killed=killed)
    data = grown.process.data
    newest = tmp_path / "newest"
    (data / "metadata").rename(newest)
    shutil.copytree(grown.of_before / "metadata", data / "metadata")
    for _ in range(2):  # the refusal is no state of its own
        said = grown.process.refuse_to_start()
        assert f"can't start: the metadata ({data}/metadata/metadata.sqlite) are at commit" in said
        assert f"the bookie in {data}/bookie has seen" in said
    shutil.rmtree(data / "metadata")
    newest.rename(data / "metadata")
    with grown.process:  # nothing was spoilt
        grown.check(grown.receipts)
    shutil.rmtree(data)
    shutil.copytree(grown.of_before, data)
    with grown.process:  # a copy of the whole directory is what was then
        grown.check(early)
        grown.write()


def test_another_directorys_metadata_or_none_are_refused(tmp_path: Path) -> None:
    grown, _ = grow(tmp_path, killed=True)
    metadata = grown.process.data / "metadata"
    metadata.rename(tmp_path / "away")
    said = grown.process.refuse_to_start()
    assert f"can't start: metadata database {metadata}/metadata.sqlite: the file is missing" in said
    assert not metadata.exists()
    with StandaloneProcess(tmp_path / "other"):
        pass
    shutil.copytree(tmp_path / "other" / "metadata", metadata)
    said = grown.process.refuse_to_start()
    assert "can't start: cookie.json belongs to cluster" in said


async def test_metadata_made_anew_with_the_old_names_are_refused(tmp_path: Path) -> None:
    """As a tool would that exports the nodes and imports them: the cookie fits."""
    grown, _ = grow(tmp_path, killed=False)
    path = grown.process.data / "metadata" / "metadata.sqlite"
    old = EmbeddedMetadataStore.open(path)
    nodes = {name: node.value for name, node in old._tree.nodes.items() if name != "/"}
    await old.close()
    shutil.rmtree(path.parent)
    new = EmbeddedMetadataStore.open(path)
    for name, value in sorted(nodes.items()):
        await new.put(name, value)
    await new.close()
    said = grown.process.refuse_to_start()
    assert f"({path}) are not those with which the bookie in {grown.process.data}/bookie" in said
