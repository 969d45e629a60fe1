"""The pure parts of ``magnetar cluster``: plan, ports, restarts, rows."""

import argparse
import itertools
from pathlib import Path

import pytest

from magnetar.broker.cli.main import build_parser
from magnetar.broker.config import BrokerConfig
from magnetar.broker.local_cluster.apache_bookkeeper import ApacheBookKeeper
from magnetar.broker.local_cluster.cluster_folder import ClusterFolder, SavedPorts
from magnetar.broker.local_cluster.errors import LocalClusterError
from magnetar.broker.local_cluster.java import java_major
from magnetar.broker.local_cluster.member_process import (
    Member,
    MemberState,
    RestartPolicy,
    how_it_ended,
)
from magnetar.broker.local_cluster.plan import (
    ClusterOptions,
    ClusterPlan,
    PortBases,
    ProcessKind,
    assign_ports,
    bookie_count,
    bookkeeper_kind,
    check_cluster_options,
    plan_cluster,
    port_bases,
    quorum_settings,
)
from magnetar.broker.local_cluster.probes import (
    ObservedState,
    autorecovery_health,
    bookie_health,
    broker_health,
)
from magnetar.broker.local_cluster.status_table import (
    COLUMNS,
    ProcessStats,
    row,
    summary,
    text_table,
)

FREE = PortBases(0, 0, 0, 0)


def ports_of(
    cluster_options: ClusterOptions,
    bases: PortBases,
    known: dict[str, int] | None = None,
    busy: frozenset[int] = frozenset(),
) -> dict[str, int]:
    return assign_ports(
        cluster_options, bases, known or {}, lambda port: port not in busy, itertools.count(20_000)
    )


def plan_of(cluster_options: ClusterOptions) -> ClusterPlan:
    return plan_cluster(cluster_options, ports_of(cluster_options, PortBases()), "/data")


def parse(*line: str) -> argparse.Namespace:
    return build_parser(line).parse_args(line)


# ---- plan


def test_processes_in_the_order_of_their_start() -> None:
    plan = plan_of(ClusterOptions(2, 3))
    names = [each.name for each in plan.processes]
    assert names == [
        *("zookeeper", "bookie-1", "bookie-2", "bookie-3", "autorecovery", "broker-1", "broker-2")
    ]
    assert plan.metadata_url == "zk:127.0.0.1:2181"
    assert plan.service_url == "pulsar://127.0.0.1:6650,127.0.0.1:6651"
    assert plan.web_urls == ("http://127.0.0.1:8080", "http://127.0.0.1:8081")


def test_the_commands_understand_their_arguments() -> None:
    cluster_options = ClusterOptions(
        1, 1, broker_settings=["maxTenants=7"], bookie_settings=["gcWaitTime=1000"]
    )
    zookeeper, bookie, autorecovery, broker = plan_of(cluster_options).processes
    options = parse(*zookeeper.arguments)
    assert (options.command, options.client_port, options.bind) == ("zookeeper", 2181, "127.0.0.1")
    assert options.data == "/data/zookeeper"
    options = parse(*bookie.arguments)
    assert (options.command, options.id, options.port) == ("bookie", "bookie-1", 3181)
    assert options.data == "/data/bookie-1"
    assert options.metadata == "zk:127.0.0.1:2181"
    assert options.set[-1] == "gcWaitTime=1000"  # ours first, so that theirs win
    assert parse(*autorecovery.arguments).command == "autorecovery"
    options = parse(*broker.arguments)
    assert (options.command, options.port, options.web_port) == ("broker", 6650, 8080)
    assert options.set[-1] == "maxTenants=7"


def test_every_setting_of_a_broker_is_one() -> None:
    options = parse(*plan_of(ClusterOptions(1, 3)).stage(ProcessKind.BROKER)[0].arguments)
    settings = dict(text.split("=", 1) for text in options.set)
    config = BrokerConfig.load(None, None, settings)
    assert config.managed_ledger_default_ensemble_size == 3
    assert config.managed_ledger_default_write_quorum == 3
    assert config.managed_ledger_default_ack_quorum == 2
    assert config.bookkeeper_delay_ensemble_change
    assert config.metadata_store_session_timeout_millis == 6_000
    assert config.advertised_host == "127.0.0.1"


def test_apaches_bookies_and_brokers_on_them() -> None:
    apache = ApacheBookKeeper("/bin/java", "/jars", "lo")
    plan = plan_of(ClusterOptions(1, 2, bookie_settings=["gcWaitTime=1000"], apache=apache))
    assert [each.name for each in plan.processes] == [
        *("zookeeper", "bookie-1", "bookie-2", "broker-1")
    ]
    assert plan.ledgers_uri == "zk+hierarchical://127.0.0.1:2181/ledgers"
    assert plan.metadata_url == "zk:127.0.0.1:2181/magnetar"
    assert plan.new_cluster[0] == "/bin/java"
    assert plan.new_cluster[-2:] == ("/data/bookie-1.conf", "initnewcluster")
    bookie = plan.stage(ProcessKind.BOOKIE)[1]
    assert bookie.program == ("/bin/java",)
    for command in (plan.new_cluster, bookie.arguments):
        assert "-Djava.io.tmpdir=/data/tmp" in command
    lines = bookie.files[bookie.arguments[-1]].splitlines()
    assert "bookieId=bookie-2" in lines
    assert "bookiePort=3182" in lines
    assert "listeningInterface=lo" in lines
    assert lines[-1] == "gcWaitTime=1000"
    options = parse(*plan.stage(ProcessKind.BROKER)[0].arguments)
    assert options.metadata == plan.metadata_url
    assert f"bookkeeperMetadataServiceUri={plan.ledgers_uri}" in options.set


def test_ledgers_may_be_in_a_zookeeper_that_is_there() -> None:
    url, apache = "zk:a:1,b:2/demo", ApacheBookKeeper("java", "/jars")
    plan = plan_of(ClusterOptions(1, 1, metadata_url=url, apache=apache))
    assert plan.ledgers_uri == "zk+hierarchical://a:1;b:2/demo/ledgers"
    assert (plan.ledgers_url, plan.metadata_url) == (url, f"{url}/magnetar")
    assert "listeningInterface" not in str(plan.processes[0].files)


def test_data_of_other_bookies_are_refused() -> None:
    assert bookkeeper_kind(None, None) == "magnetar"
    assert bookkeeper_kind(None, "apache") == "apache"
    with pytest.raises(LocalClusterError, match="bookies of apache have data here"):
        bookkeeper_kind("magnetar", "apache")


def test_another_zookeeper_is_not_started() -> None:
    cluster_options = ClusterOptions(1, 1, metadata_url="zk:elsewhere:2181/demo")
    plan = plan_of(cluster_options)
    assert plan.stage(ProcessKind.ZOOKEEPER) == ()
    assert "zookeeper" not in ports_of(cluster_options, PortBases())
    assert all("zk:elsewhere:2181/demo" in each.arguments for each in plan.processes)


def test_who_listens_everywhere_is_found_at_home() -> None:
    broker = plan_of(ClusterOptions(1, 1, host="0.0.0.0")).stage(ProcessKind.BROKER)[0]
    assert broker.address == "127.0.0.1:6650"
    assert broker.arguments[broker.arguments.index("--bind") + 1] == "0.0.0.0"


@pytest.mark.parametrize(
    ("bookies", "quorums"), [(1, "111"), (2, "222"), (3, "332"), (4, "332"), (9, "332")]
)
def test_quorums(bookies: int, quorums: str) -> None:
    settings = quorum_settings(bookies)
    found = [settings[f"managedLedgerDefault{name}"] for name in _QUORUMS]
    assert "".join(found) == quorums
    # With a fourth bookie there is one to replace a dead one.
    assert ("bookkeeper_delayEnsembleChange" in settings) == (bookies == 3)


_QUORUMS = ("EnsembleSize", "WriteQuorum", "AckQuorum")


@pytest.mark.parametrize(
    ("cluster_options", "bases", "said"),
    [
        (ClusterOptions(0, 3), PortBases(), "--brokers 0"),
        (ClusterOptions(1, 65), PortBases(), "--bookies 65"),
        (ClusterOptions(2, 1), PortBases(broker=65_535), "port 65536 (broker-2)"),
        (ClusterOptions(1, 1), PortBases(web=-1), "port -1 (broker-1 web)"),
        (ClusterOptions(1, 1, host="::1"), PortBases(), "--bind ::1"),
        (ClusterOptions(1, 1, metadata_url="etcd://x"), PortBases(), "--metadata etcd://x"),
        (
            ClusterOptions(1, 1, broker_settings=["maxTenants"]),
            PortBases(),
            "maxTenants: KEY=VALUE",
        ),
    ],
)
def test_options_that_make_no_cluster(
    cluster_options: ClusterOptions, bases: PortBases, said: str
) -> None:
    with pytest.raises(LocalClusterError, match=said.replace("(", r"\(").replace(")", r"\)")):
        check_cluster_options(cluster_options, bases)


def test_bookies_with_data_are_not_left_out() -> None:
    assert bookie_count(None, None) == 3
    assert bookie_count(None, 5) == 5
    assert bookie_count(4, 3) == 4
    with pytest.raises(LocalClusterError, match="3 bookies have data"):
        bookie_count(2, 3)


# ---- ports


def test_asked_ports_are_consecutive_and_stay_so() -> None:
    ports = ports_of(
        ClusterOptions(2, 2), PortBases(7000, 7100, 7200, 7300), known={"broker-1": 6650}
    )
    assert [ports[f"broker-{n}"] for n in (1, 2)] == [7000, 7001]
    assert [ports[f"broker-{n} web"] for n in (1, 2)] == [7100, 7101]
    assert [ports[f"bookie-{n}"] for n in (1, 2)] == [7200, 7201]
    assert ports["zookeeper"] == 7300
    assert len(set(ports.values())) == len(ports)


def test_a_port_in_use_is_told() -> None:
    with pytest.raises(LocalClusterError, match=r"port 6651 \(broker-2\) is in use"):
        ports_of(ClusterOptions(2, 1), PortBases(), busy=frozenset({6651}))


def test_ranges_that_meet_are_told() -> None:
    with pytest.raises(LocalClusterError, match=r"port 7001 \(broker-\d( web)?\) is in use"):
        ports_of(ClusterOptions(2, 1), PortBases(broker=7000, web=7001))


def test_free_ports_are_those_of_the_last_start_where_possible() -> None:
    cluster_options = ClusterOptions(2, 1)
    first = ports_of(cluster_options, FREE, busy=frozenset({20_000}))
    assert 20_000 not in first.values()
    assert ports_of(cluster_options, FREE, known=first) == first
    taken = first["broker-2"]
    again = ports_of(cluster_options, FREE, known=first, busy=frozenset({taken}))
    assert again.pop("broker-2") != taken
    assert again.items() <= first.items()


def test_a_start_without_options_takes_the_ports_of_the_last_one() -> None:
    before = ClusterOptions(2, 1)
    first = ports_of(before, port_bases({"broker": 7000, "web": 9000, "zookeeper": 2200}, {}))
    again = ports_of(before, port_bases({}, first), known=first)
    assert again == first
    grown = ports_of(ClusterOptions(3, 1), port_bases({}, first), known=first)
    assert grown["broker-3"] == 6652  # it has no port of before
    assert first.items() <= grown.items()
    with pytest.raises(LocalClusterError, match=r"port 9001 \(broker-2 web\) is in use"):
        ports_of(before, port_bases({}, first), known=first, busy=frozenset({9001}))


def test_a_start_with_one_option_moves_what_it_names() -> None:
    before = ClusterOptions(2, 1)
    first = ports_of(before, port_bases({"broker": 7000, "web": 9000}, {}))
    again = ports_of(before, port_bases({"web": 9500}, first), known=first)
    assert [again[f"broker-{n} web"] for n in (1, 2)] == [9500, 9501]
    assert [again[f"broker-{n}"] for n in (1, 2)] == [7000, 7001]
    assert again["bookie-1"] == first["bookie-1"]


def test_probes_move_when_somebody_else_has_their_port() -> None:
    before = ClusterOptions(1, 1)
    first = ports_of(before, port_bases({}, {}))
    busy = frozenset({first["bookie-1 web"]})
    again = ports_of(before, port_bases({}, first), known=first, busy=busy)
    assert again["bookie-1 web"] not in busy


def test_any_free_ports_leave_those_in_use_alone() -> None:
    before = ClusterOptions(1, 1)
    first = ports_of(before, port_bases({"broker": 7000}, {}))
    busy = frozenset({7000, first["bookie-1"]})
    again = ports_of(before, port_bases({"broker": 0}, first), known=first, busy=busy)
    assert busy.isdisjoint(again.values())
    assert again["zookeeper"] == first["zookeeper"]


def test_a_free_choice_leaves_asked_ports_alone() -> None:
    ports = ports_of(ClusterOptions(1, 1), PortBases(0, 20_001, 0, 0), known={"broker-1": 20_001})
    assert ports["broker-1 web"] == 20_001
    assert len(set(ports.values())) == len(ports)


# ---- life of a process


def member() -> Member:
    made = Member(RestartPolicy(first_s=1.0, longest_s=5.0, steady_s=100.0))
    made.on_started(0.0, 7)
    return made


def test_waits_double_up_to_the_longest_and_begin_anew_after_a_steady_life() -> None:
    m = member()
    m.on_ready()
    waits = []
    for now in range(5):
        waits.append(m.on_exit(now, "exit 1"))
        assert m.state is MemberState.RESTARTING
        m.on_started(now, 8)
    assert waits == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert m.restarts == 5
    assert m.on_exit(4 + 100.0, "exit 1") == 1.0


def test_who_was_never_ready_gives_up() -> None:
    m = member()
    for _ in range(2):
        assert m.on_exit(0.0, "exit 1") is not None
        m.on_started(0.0, 8)
    assert m.on_exit(0.0, "exit 1") is None
    assert m.can_not_start
    assert m.state is MemberState.STOPPED


def test_who_was_ready_once_never_gives_up() -> None:
    m = member()
    m.on_ready()
    for _ in range(1000):
        assert m.on_exit(0.0, "exit 1") is not None
        m.on_started(0.0, 8)
    assert not m.can_not_start


def test_no_restart() -> None:
    m = Member(RestartPolicy(enabled=False))
    m.on_started(0.0, 7)
    m.on_ready()
    assert m.on_exit(1.0, "exit 1") is None
    assert (m.state, m.can_not_start) == (MemberState.STOPPED, False)


def test_who_is_stopped_stays_down_and_late_news_change_nothing() -> None:
    m = member()
    m.on_stop()
    m.on_ready()
    assert m.state is MemberState.STOPPING
    assert m.on_exit(1.0, "exit 1") is None
    assert (m.state, m.pid, m.can_not_start) == (MemberState.STOPPED, 0, False)


def test_who_waits_for_a_restart_is_stopped_at_once() -> None:
    m = member()
    m.on_exit(0.0, "exit 1")
    m.on_stop()
    assert m.state is MemberState.STOPPED


def test_ends_in_words() -> None:
    assert how_it_ended(3) == "exit 3"
    assert how_it_ended(-9) == "killed by SIGKILL"
    assert how_it_ended(-99) == "killed by signal 99"


# ---- rows and health


def test_a_row_shows_what_is_known() -> None:
    broker = plan_of(ClusterOptions(1, 1)).stage(ProcessKind.BROKER)[0]
    m = member()
    m.on_ready()
    cells = row(broker, m, ProcessStats("2 bundles", 150 * 1024 * 1024, 0.25)).cells
    assert cells == ("broker-1", "7", "127.0.0.1:6650", "ready", "2 bundles", "150 MiB", "25%", "0")
    assert len(cells) == len(COLUMNS)
    m.on_exit(0.0, "exit 1")
    cells = row(broker, m, ProcessStats("2 bundles", 150 * 1024 * 1024, 0.25)).cells
    assert cells == ("broker-1", "-", "127.0.0.1:6650", "restarting", "-", "-", "-", "0")


def test_summary_and_lines() -> None:
    plan = plan_of(ClusterOptions(1, 1))
    m = member()
    rows = [row(each, m, ProcessStats()) for each in plan.processes]
    m.on_ready()
    rows.append(row(plan.processes[0], m, ProcessStats()))
    assert summary(rows) == "1 ready, 4 starting"
    lines = list(text_table(rows))
    assert len(lines) == 6
    assert all(line.index("127.0") == lines[0].index("address") for line in lines[1:])


def test_health_is_what_zookeeper_and_the_process_say() -> None:
    seen = ObservedState(frozenset({"a"}), frozenset({"b"}), {"brokerId": "127.0.0.1:8080"})
    assert [bookie_health(name, seen) for name in "abc"] == [
        *("registered", "read-only", "not registered")
    ]
    assert bookie_health("a", None) == "unknown: no ZooKeeper"
    assert autorecovery_health({"isAuditor": True, "enabled": True}) == "auditor"
    assert autorecovery_health({"isAuditor": True, "enabled": False}) == "auditor, switched off"
    assert autorecovery_health({"isAuditor": False}) == "no auditor"
    assert autorecovery_health(None) == "no answer"
    one, two = plan_of(ClusterOptions(2, 1)).stage(ProcessKind.BROKER)
    assert broker_health(one, {"x": {}}, seen) == "leader, 1 bundle"
    assert broker_health(two, {}, seen) == "0 bundles"
    assert broker_health(two, None, seen) == "no answer"


# ---- folder and Java


def test_a_folder_remembers_and_is_used_by_one(tmp_path: Path) -> None:
    folder = ClusterFolder(tmp_path / "cluster")
    assert folder.saved_ports() == SavedPorts()
    folder.remember(3, {"broker-1": 6650}, "apache")
    with pytest.raises(LocalClusterError, match="another cluster runs there"):
        ClusterFolder(tmp_path / "cluster")
    folder.close()
    again = ClusterFolder(tmp_path / "cluster")
    assert again.saved_ports() == SavedPorts(3, {"broker-1": 6650}, "apache")
    (tmp_path / "cluster" / "cluster.json").write_text('{"ports": 1}')
    with pytest.raises(LocalClusterError, match="is damaged"):
        again.saved_ports()
    again.close()


def test_a_long_log_is_put_aside(tmp_path: Path) -> None:
    folder = ClusterFolder(tmp_path)
    log = folder.log_path("broker-1")
    with log.open("wb") as file:
        file.truncate(17 * 1024 * 1024)
    assert folder.log_path("broker-1") == log
    assert not log.exists()
    assert (log.parent / "broker-1.log.1").exists()
    folder.close()


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_362"', 8),
        ('openjdk version "22-ea" 2024-03-19', 22),
        ("not java", None),
    ],
)
def test_java_versions(text: str, major: int | None) -> None:
    assert java_major(text) == major
