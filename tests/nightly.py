"""Whether tests run at their full size: ``make nightly`` sets MAGNETAR_NIGHTLY, CI doesn't."""

import os
from typing import Final

NIGHTLY: Final = bool(os.environ.get("MAGNETAR_NIGHTLY"))
