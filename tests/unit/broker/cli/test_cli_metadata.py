"""``magnetar metadata recover``: what is put in the place of what is lost."""

import pytest

from magnetar.bookkeeper.bookie.storage.directory_contents import DirectoryContents
from magnetar.broker.cli.metadata_command import _complete
from magnetar.metadata.salvage import Salvage

IDS = "/ledgers/idgen"


@pytest.mark.parametrize("last_ledger", [-1, 999, 1000, 123_456])
@pytest.mark.parametrize("stored", [b"2000", b"?", None])
def test_no_ledger_id_comes_again(last_ledger: int, stored: bytes | None) -> None:
    """The counter may be as old as the metadata, so the bookie has to be asked."""
    found = Salvage(rows={} if stored is None else {IDS: (IDS, stored, 7, 1, 2)})
    _complete(found, DirectoryContents(last_ledger=last_ledger))
    _, value, version, *_ = found.rows[IDS]
    given = 2000 if stored == b"2000" else 0
    assert int(value) > max(last_ledger, given)
    assert version == (0 if stored is None else 8)
