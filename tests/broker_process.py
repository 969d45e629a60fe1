"""A real ``magnetar broker`` process for tests: a broker whose bookies are elsewhere."""

from pathlib import Path

from tests.child_process import ROOT
from tests.standalone_process import StandaloneProcess


class BrokerProcess(StandaloneProcess):
    """As ``StandaloneProcess``; what it keeps is in ZooKeeper and in the bookies."""

    word = "broker"

    def __init__(self, log: Path, metadata_url: str, *options: str, tree: Path = ROOT) -> None:
        """``log`` is what its output is named after."""
        super().__init__(log, *options, tree=tree)
        self._metadata_url = metadata_url

    def _place(self) -> tuple[str, ...]:
        return "--metadata", self._metadata_url
