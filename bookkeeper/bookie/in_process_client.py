"""A bookie in the same process as its client: the same journal, no network, no copies."""

from __future__ import annotations

from magnetar.bookkeeper.bookie.bookie import Bookie


class InProcessBookieClient:
    """``BookieClient`` that calls the bookie directly.

    Buffers are shared, and digests are not checked again: no wire lies between the two.
    """

    is_backlogged = False  # the broker's own limit on publishes is below the journal's
    pending_requests = 0

    def __init__(self, bookie: Bookie) -> None:
        self._bookie = bookie
        self.bookie_id = bookie.bookie_id
        self.add_entries = bookie.add_entries
        self.read_entries = bookie.read_entries
        self.read_heads = bookie.read_heads
        self.read_lac = bookie.read_lac
        self.wait_lac = bookie.wait_lac
        self.write_lac = bookie.write_lac
        self.force = bookie.force
        self.list_entries = bookie.list_entries
        self.list_ledgers = bookie.list_ledgers
        self.info = bookie.info
        self.report_corrupt = bookie.report_corrupt
        self.check_data = bookie.check_data
