"""Strategies that take load from brokers: one module each, all by the rules of ``plan.py``."""

from collections.abc import Callable
from typing import Final

from magnetar.loadbalance.config import (
    AVG_SHEDDER,
    OVERLOAD_SHEDDER,
    SHEDDERS,
    THRESHOLD_SHEDDER,
    TRANSFER_SHEDDER,
    UNIFORM_SHEDDER,
    strategy_name,
)
from magnetar.loadbalance.shedding.avg import AvgShedder
from magnetar.loadbalance.shedding.overload import OverloadShedder
from magnetar.loadbalance.shedding.shedder import Shedder
from magnetar.loadbalance.shedding.threshold import ThresholdShedder
from magnetar.loadbalance.shedding.transfer import TransferShedder
from magnetar.loadbalance.shedding.uniform import UniformLoadShedder

__all__ = ["Shedder", "make_shedder"]

_BY_NAME: Final[dict[str, Callable[[], Shedder]]] = {
    AVG_SHEDDER: AvgShedder,
    OVERLOAD_SHEDDER: OverloadShedder,
    THRESHOLD_SHEDDER: ThresholdShedder,
    UNIFORM_SHEDDER: UniformLoadShedder,
    TRANSFER_SHEDDER: TransferShedder,
}


def make_shedder(setting: str) -> Shedder:
    """The strategy that a setting names, without a memory of rounds before.

    Raises:
        InvalidSettingError: there is none of that name.
    """
    return _BY_NAME[strategy_name(setting, SHEDDERS)]()
