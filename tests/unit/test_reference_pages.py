"""The generated pages of docs/reference are what the code says; every setting has a text."""

from __future__ import annotations

import admin_commands
import pytest
import reference_pages
import reference_settings


def test_every_setting_has_a_text_and_no_text_is_left_over() -> None:
    assert reference_settings.lacking() == []


def test_no_setting_is_described_twice() -> None:
    keys = [
        (process, text.key) for process, _, texts in reference_settings.sections() for text in texts
    ]
    assert len(keys) == len(set(keys)) > 400


@pytest.mark.parametrize("page", reference_pages.PAGES)
def test_a_page_is_up_to_date(page: str) -> None:
    written = (reference_pages.FOLDER / page).read_text()
    assert written == reference_pages.PAGES[page](), "run: python scripts/reference_pages.py"


def test_the_admin_commands_are_what_the_routes_say() -> None:
    written = admin_commands.FILE.read_text()
    assert written == admin_commands.written(), "run: python scripts/admin_commands.py"
