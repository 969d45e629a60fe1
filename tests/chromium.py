"""Chromium for tests: of the machine, nothing is downloaded."""

import base64
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, ConsoleMessage, Page, Request, sync_playwright

CHROMIUM: Final = os.environ.get("MAGNETAR_CHROMIUM") or shutil.which("chromium")
_OPTIONS: Final = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync")
_QUALITY: Final = 80


@contextmanager
def chromium(*options: str) -> Iterator[Browser]:
    """REQUIRES: CHROMIUM isn't None."""
    assert CHROMIUM is not None
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=[*_OPTIONS, *options])
        yield found
        found.close()


class Watch:
    """What a page must not do: ask other hosts, complain, or run what isn't ours."""

    def __init__(self, page: Page, own: str) -> None:
        """
        Args:
            own: what the URLs of the page's requests begin with.
        """
        self._own = own
        self.complaints: list[str] = []
        page.on("console", self._on_console)
        page.on("request", self._on_request)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(dialog.message))

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type != "debug":
            self.complaints.append(message.text)

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith(self._own):
            self.complaints.append(request.url)


def picture(page: Page, path: Path) -> int:
    """Writes what is on screen as WebP, which Playwright itself can't; its size in bytes."""
    session = page.context.new_cdp_session(page)
    asked = {"format": "webp", "quality": _QUALITY, "optimizeForSpeed": False}
    content = base64.b64decode(session.send("Page.captureScreenshot", asked)["data"])
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.write_bytes(content)
