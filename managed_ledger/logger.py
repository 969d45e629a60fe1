"""The package's logger: transitions and failures, never a line per entry."""

from __future__ import annotations

import logging

logger = logging.getLogger("magnetar.managed_ledger")
