"""Settings: those that can change while brokers run, and all of the asked broker."""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from magnetar.broker.console.admin_api import AdminApi, get
from magnetar.broker.console.views import Ask, View, panel, row_id

_SECRET: Final = re.compile("secret|password|authenticationparameters", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class DynamicSetting:
    id: str
    name: str
    value: str | None
    """In force at the asked broker; None: it doesn't tell."""
    stored: str | None
    """That was set for all brokers; None: none was."""


async def settings(ask: Ask) -> View:
    dynamic, runtime = await asyncio.gather(
        panel("Dynamic settings", _dynamic(ask.source.api), list),
        panel("Settings", get(ask.source.api, "brokers/configuration/runtime"), without_secrets),
    )
    content = {"dynamic": dynamic, "runtime": runtime}
    return View("settings.html", "Settings", "settings", content, live=0)


async def _dynamic(api: AdminApi) -> list[DynamicSetting]:
    """Those that were set come first. Raises AdminError."""
    names, stored, runtime = await asyncio.gather(
        get(api, "brokers/configuration"),
        get(api, "brokers/configuration/values"),
        get(api, "brokers/configuration/runtime"),
    )
    stored, runtime = without_secrets(stored), without_secrets(runtime)
    rows = [
        DynamicSetting(row_id(name), name, runtime.get(name), stored.get(name))
        for name in sorted({*names, *stored})
    ]
    return sorted(rows, key=lambda each: each.stored is None)


def without_secrets(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Apache Pulsar tells the values of all."""
    return {
        name: "•••" if value and _SECRET.search(name) else value for name, value in settings.items()
    }
