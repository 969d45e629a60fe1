"""Schemas of a cluster of Apache Pulsar 4.2.4, read and written back byte by byte."""

import orjson

from magnetar.broker.migration.pulsar_schemas import (
    locator,
    locator_index,
    schema_entry,
    stored_schema,
)
from tests.unit.broker.migration.recorded import recorded

PATH = "/schemas/acme/orders/typed"


def test_versions_of_a_schema() -> None:
    index = locator_index(recorded().nodes[PATH], PATH)
    stored = [
        stored_schema(each.version, recorded().entries[each.position.ledgerId][0], PATH)
        for each in index
    ]
    assert [each.version for each in stored] == [0, 1, 2]
    assert {each.definition.type for each in stored} == {"AVRO"}
    names = [
        [field["name"] for field in orjson.loads(each.definition.data)["fields"]] for each in stored
    ]
    assert names == [["a"], ["a", "b"], ["a", "b", "c"]]
    assert not any(each.deleted for each in stored)


def test_what_we_write_is_what_pulsar_wrote() -> None:
    index = locator_index(recorded().nodes[PATH], PATH)
    assert locator(index) == recorded().nodes[PATH]
    for number, each in enumerate(index):
        entry = recorded().entries[each.position.ledgerId][0]
        stored = stored_schema(each.version, entry, PATH)
        assert schema_entry("acme/orders/typed", stored, index[:number]) == entry
