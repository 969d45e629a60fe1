"""Where the processes of one ``magnetar standalone`` find each other. Pure."""

from pathlib import Path
from typing import Final

from magnetar.broker.config import BrokerConfig

FOLDER: Final = "processes"
"""Below the data directory; nobody but its user may enter it."""


def folder_of(config: BrokerConfig) -> Path:
    return config.data_path.absolute() / FOLDER


def socket_of(config: BrokerConfig) -> Path:
    """Of the storage process, for metadata."""
    return folder_of(config) / "metadata.socket"


def token_file_of(config: BrokerConfig) -> Path:
    """What a broker shows to the storage process; a new one each time that one starts."""
    return folder_of(config) / "bookie.token"
