"""The generated pages of docs/reference are what the code says; every setting has a text."""

from pathlib import Path

import admin_commands
import pytest
import reference_pages
import reference_settings

from magnetar.bookkeeper.environment import normalize_key

_PULSAR = Path(__file__).parent / "broker"
# Other words for the same, or none: an empty value has this meaning in Pulsar.
SAME = {
    *("authorizationProvider", "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds"),
    *("brokerServicePortTls", "clusterName", "subscriptionTypesEnabled", "tokenAuthClaim"),
    "webServicePortTls",
}


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


def test_a_default_that_differs_from_pulsars_is_told() -> None:
    pulsars: dict[str, str] = {}
    for line in (_PULSAR / "pulsar_settings_4_2_4.tsv").read_text().splitlines():
        key, default = line.split("\t")
        pulsars[normalize_key(key)] = default
    for line in (_PULSAR / "pulsar_files_4_2_4.tsv").read_text().splitlines():
        file, key, default = line.split("\t")
        if file == "broker.conf":
            pulsars[normalize_key(key)] = default
    silent = [
        text.key
        for process, _, texts in reference_settings.sections()
        for text in texts
        if process == "broker" and "Pulsar" not in text.text and text.key not in SAME
        if normalize_key(text.key) in pulsars
        and not _equal(reference_settings.default_of(text.key), pulsars[normalize_key(text.key)])
    ]
    assert silent == []


def _equal(ours: str, pulsars: str) -> bool:
    try:
        return float(ours) == float(pulsars)
    except ValueError:
        return ours == pulsars
