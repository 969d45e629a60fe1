"""The package's logger: transitions and failures, never a line per entry."""

import logging

logger = logging.getLogger("magnetar.managed_ledger")
