"""Spark reads ledgers of Apache's bookies whose digests are made of a password."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.apache_bookies import needs_bookkeeper, start_bookies
from tests.broker_process import BrokerProcess
from tests.integration.test_apache_bookkeeper import send
from tests.nightly import NIGHTLY
from tests.zookeeper_process import ZooKeeperProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    needs_bookkeeper,
    pytest.mark.skipif(not NIGHTLY, reason="make nightly: Spark beside JVMs of bookies"),
]
TOPIC = "persistent://public/default/hashed"
TEXTS = [b"%d" % number for number in range(200)]
PASSWORD = "pässword"


def test_digests_of_a_password(spark: SparkSession, tmp_path: Path) -> None:
    """With the broker's password. A wrong one is named at once."""
    with ZooKeeperProcess(tmp_path / "zk") as zookeeper:
        bookies = start_bookies(tmp_path, zookeeper.port, 2)
        settings = {
            "bookkeeperMetadataServiceUri": bookies[0].metadata_uri,
            "managedLedgerDigestType": "MAC",
            "managedLedgerPassword": PASSWORD,
            **{f"managedLedgerDefault{n}": "2" for n in ("EnsembleSize", "WriteQuorum")},
        }
        options = [word for pair in settings.items() for word in ("--set", "=".join(pair))]
        url = zookeeper.url("/magnetar")
        try:
            with BrokerProcess(tmp_path / "broker", url, *options) as broker:
                send(broker.service_url, TOPIC, TEXTS)
                reader = spark.read.format("magnetar")
                reader = reader.option("adminUrl", broker.admin_url).option("subscribe", TOPIC)
                found = reader.option("managedLedgerPassword", PASSWORD).load()
                assert [
                    bytes(row.value) for row in found.orderBy("entryId", "batchIndex").collect()
                ] == TEXTS
                for wrong in ("", "another"):
                    rows = reader.option("managedLedgerPassword", wrong).load()
                    with pytest.raises(Exception, match="managedLedgerPassword isn't the ledger's"):
                        rows.collect()
        finally:
            for bookie in bookies:
                bookie.stop()
