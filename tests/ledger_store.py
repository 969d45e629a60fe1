"""Whose bookies the clusters of tests have: ``MAGNETAR_LEDGER_STORE=apache`` picks Apache's.

``make test-apache-bookkeeper`` sets it for every test of a cluster of processes. The others stay on
our bookies:

* ``test_bookkeeper_*``, ``test_managed_ledger*``, ``test_failures_*``, ``test_kill_nine``: they are
  about our bookies, their disks, their HTTP and their auto-recovery;
* tests of one ``standalone`` process: it has a bookie inside;
* ``test_cluster_doctor``: it asks bookies over HTTP, which Apache's have no jars for;
* ``test_cluster_local``, ``test_apache_bookkeeper``: they start both kinds by themselves, also in
  CI if the jars are there.
"""

import os
from typing import Final

APACHE: Final = os.environ.get("MAGNETAR_LEDGER_STORE", "") == "apache"


def cluster_options() -> tuple[str, ...]:
    """Of ``magnetar cluster``."""
    return ("--bookkeeper", "apache") if APACHE else ()
