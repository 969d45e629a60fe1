"""Records of a cursor ledger as each version wrote them: read for ever.

Version 2: test_cursor_packed_runs.py.
"""

import base64

import pytest
from pyroaring import BitMap

from magnetar.managed_ledger.cursor.cursor_format import ImageReplay, decode_record
from magnetar.managed_ledger.cursor.cursor_image import CursorImage

WIDE = CursorImage(
    (4, 99),
    {n: BitMap([n, n + 2]) for n in range(5, 3005, 10)},
    {n: {3: 0b1011} for n in range(6, 3006, 10)},
    {"n": -5},
)
STORED = {
    1: (
        "xQEBAQAAAAD//////////wMAAAAaAAAAAAAAAAcAAAABAAAAAwABCwAAAAAAAAACAAAAHgAAAAAAAAAFOjAAAAEAAAAA"
        "AAIAEAAAAAEAAgAJAAQAAAARAAAAAQAAAAH/////////+24BAAAAEAAAAAAAAAAEAAAAAAAAAGM=",
        CursorImage((4, 99), {5: BitMap([1, 2, 9])}, {7: {3: 0b1011}}, {"n": -5}),
    ),
    3: (
        "xQMBAQAAAAD//////////wcAAAB/AAABLAAAASwAAAAdKLUv/WAQDZ0AACgGCgABAAQQAIArQVEPBj47UdsAAAATKLUv"
        "/WAsAE0AABADAAEAJyrAAgAAAAAAAAAAAAAAAAAAABMotS/9YCwATQAAEAsLAQAnKsACAAAAAAAAAAAAAAAAAAAAAAAA"
        "AAAAAAAAAAAAAAYAAABRAQAAASwAAAEsAAACWAAAACUotS/9YMAR3QAAQAUKAAUIAAEABhAAKKqgqIfdz07UBgNfnKhY"
        "AAAAEyi1L/1gWAFNAAAQAAIBAFOqHBYAAAAABAAAABEAAAABAAAAAf/////////7bgEAAAAQAAAAAAAAAAQAAAAAAAAA"
        "Yw==",
        WIDE,
    ),
    4: (
        "xQQBAQAAAAD//////////wEAAAAQAAAAAAAAAAQAAAAAAAAAYwgAAAAeAAAAAgAAAAH/////////+24AAAABAAAAAAAA"
        "AAZt",
        CursorImage((4, 99), properties={"n": -5, "m": 6}),
    ),
}


@pytest.mark.parametrize("version", STORED)
def test_a_snapshot_of_each_version_is_read(version: int) -> None:
    text, image = STORED[version]
    stored = base64.b64decode(text)
    assert stored[1] == version
    replay = ImageReplay()
    replay.on_record(decode_record(stored, "test"), "test")
    found = replay.image("test")
    assert (found.mark_delete, found.acked, found.batch_sets, found.properties) == (
        *(image.mark_delete, image.acked, image.batch_sets),
        image.properties,
    )
