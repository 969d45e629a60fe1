"""``magnetar pipeline``: the jobs from the command line.

The command line loads this module when a user asks for the pipeline, and not before.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar.broker.auth.client_auth import ClientAuth
from magnetar.broker.cli.errors import CliError
from magnetar.pipeline.errors import OptionsError, PipelineError, SetupError
from magnetar.pipeline.session import check_packages, open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from magnetar.pipeline.jobs.progress import Progress
    from magnetar.pipeline.jobs.tables import ReportTable

_SIDES = {"first": "starting", "end": "ending"}


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """The cluster that the command line talks to."""

    service_url: str
    admin_url: str
    access: ClientAuth = field(default_factory=ClientAuth)

    def options(self) -> dict[str, str]:
        """The options of the source and the sink."""
        options = {
            "adminUrl": self.admin_url,
            "serviceUrl": self.service_url,
            "authPlugin": self.access.plugin,
            "authParams": self.access.params,
            "tlsTrustCertsFilePath": self.access.trusted,
            "tlsAllowInsecureConnection": "true" if self.access.insecure else "",
        }
        return {name: text for name, text in options.items() if text}


def run(options: argparse.Namespace, place: ClusterAddress) -> int:
    """Run one job; the exit code.

    Raises:
        CliError: it failed for a reason that the user can understand.
    """
    jobs = {"export": _export, "replay": _replay, "backlog": _backlog, "load": _load}
    try:
        return jobs[options.action](options, place)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in ("pyspark", "pyarrow", "py4j", "matplotlib"):
            check_packages(str(error.name))
        raise
    except (PipelineError, SetupError) as error:
        raise CliError(str(error)) from error


def where_options(side: str, text: str | None) -> dict[str, str]:
    """An option of the source that says where to begin or to end.

    Args:
        side: ``starting`` or ``ending``.
    Raises:
        OptionsError: not a time, nor what ``startingOffsets`` takes.
    """
    if text is None:
        return {}
    if text[:4].isdecimal() and "-" in text:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError as error:
            raise OptionsError(f"{text}: not a time (2026-11-23T08:00:00Z)") from error
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return {f"{side}Timestamp": str(int(moment.timestamp() * 1000))}
    return {f"{side}Offsets": text}


def _export(options: argparse.Namespace, place: ClusterAddress) -> int:
    from magnetar.pipeline.jobs.export import ExportSettings, export

    if bool(options.topics) == bool(options.pattern):
        raise CliError("topics to export, or --pattern, are needed, and not both")
    settings = ExportSettings(
        incremental=not options.no_incremental,
        columns=_names(options.columns),
        compression=options.parquet_compression,
        run_bytes=options.run_bytes,
        cursor=options.cursor or "",
    )
    source = _source_options(options, place)
    if options.pattern:
        source["subscribePattern"] = options.pattern
    else:
        source["subscribe"] = ",".join(options.topics)
    with _session(options, "magnetar export") as (spark, progress):
        runs = export(spark, options.to, source, settings, progress)
    if options.json:
        print(json.dumps([json.loads(each.to_json()) for each in runs], indent=2))
    elif not runs:
        print("nothing new")
    for each in () if options.json else runs:
        print(f"run {each.number}: {each.rows:,} rows in {len(each.files)} files of {each.run}")
    return 0


def _replay(options: argparse.Namespace, place: ClusterAddress) -> int:
    from magnetar.pipeline.jobs.replay import ReplaySettings, replay

    settings = ReplaySettings(
        source_topic=options.topic or "",
        name=options.name or "",
        rows_per_s=options.rate,
        keep_partitions=not options.by_key,
        keep_delays=options.keep_delays,
        order_by=_names(options.order_by),
    )
    sink = {**place.options(), **_pairs(options.option, "--option")}
    with _session(options, "magnetar replay") as (spark, progress):
        done = replay(spark, options.folder, options.to, sink, settings, progress)
    if options.json:
        print(json.dumps({"name": done.name, "runs": done.runs, "rows": done.rows}))
    else:
        print(f"{done.name}: {done.rows:,} rows sent" if done.rows else f"{done.name}: nothing new")
    return 0


def _backlog(options: argparse.Namespace, place: ClusterAddress) -> int:
    from magnetar.pipeline.admin import parse_access
    from magnetar.pipeline.jobs.backlog import backlog

    plot = _plot_path(options)
    found = backlog(parse_access(place.options()), options.places or ["public/default"])
    measure = "oldestSeconds" if options.sort == "oldest" else options.sort
    table = found.table.sorted_by(measure)
    _show(options, [table], {"backlog": list(table.rows), "failures": dict(found.failures)})
    if plot:
        from magnetar.pipeline.jobs.plots import draw_backlog

        draw_backlog(table, measure, plot)
    return _told(found.failures)


def _load(options: argparse.Namespace, place: ClusterAddress) -> int:
    plot = _plot_path(options)
    if options.keys:
        return _load_of_keys(options, place, plot)
    from dataclasses import replace

    from magnetar.pipeline.admin import parse_access
    from magnetar.pipeline.jobs.load import bundle_load

    found = bundle_load(parse_access(place.options()))
    table = found.bundles.sorted_by(options.sort)
    table = replace(table, rows=table.rows[: options.top])
    _show(
        options,
        [table, found.brokers],
        {
            "bundles": list(table.rows),
            "brokers": list(found.brokers.rows),
            "failures": dict(found.failures),
        },
    )
    if plot:
        from magnetar.pipeline.jobs.plots import draw_bundles

        draw_bundles(found, options.sort, plot)
    return _told(found.failures)


def _load_of_keys(options: argparse.Namespace, place: ClusterAddress, plot: Path | None) -> int:
    from magnetar.pipeline.jobs.load import key_load

    source = _source_options(options, place)
    with _session(options, "magnetar load") as (spark, progress):
        found = key_load(
            *(spark, options.keys, source),
            top=options.top,
            consumers=options.consumers,
            ranges=options.ranges,
            progress=progress,
        )
    _show(options, [found.keys], found.to_dict())
    if not options.json:
        print(
            f"\n{found.messages:,} messages, {found.keyless:,} without a key; {found.distinct:,} "
            f"keys, Gini {found.gini:.2f}\nof {found.consumers.count} Key_Shared consumers the "
            f"busiest would have {found.consumers.max_to_mean:.2f} times its share"
        )
    if plot:
        from magnetar.pipeline.jobs.plots import draw_keys

        draw_keys(found, plot)
    return 0


# ---- what jobs share


@contextmanager
def _session(options: argparse.Namespace, name: str) -> Iterator[tuple[SparkSession, Progress]]:
    from magnetar.pipeline.jobs.job_cancellation import apart, spark_errors
    from magnetar.pipeline.jobs.progress import Progress

    wanted = True if options.progress else False if options.no_progress else None
    progress = Progress(wanted)
    progress.say("starting Spark")
    spark = open_session(
        options.cores,
        name,
        master=options.master or "",
        log_level=options.spark_log.upper(),
        conf=_pairs(options.spark_conf, "--spark-conf"),
    )
    # Not PySpark's handler: it would wait for the answer of the call that it interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with spark_errors():
            yield spark, progress
    finally:
        apart(spark.stop)


def _source_options(options: argparse.Namespace, place: ClusterAddress) -> dict[str, str]:
    found = place.options()
    del found["serviceUrl"]
    for name, side in _SIDES.items():
        found |= where_options(side, getattr(options, name))
    if options.allow_data_loss:
        found["failOnDataLoss"] = "false"
    return found | _pairs(options.option, "--option")


def _pairs(texts: list[str], flag: str) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not name or not separator:
            raise CliError(f"{flag} {text}: KEY=VALUE is expected")
        pairs[name] = value
    return pairs


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def _plot_path(options: argparse.Namespace) -> Path | None:
    if options.parquet:
        check_packages("pyarrow")
    if not options.plot:
        return None
    from magnetar.pipeline.jobs.plots import check_file

    path = Path(options.plot)
    check_file(path)
    return path


def _show(options: argparse.Namespace, tables: list[ReportTable], value: Any) -> None:
    """On standard output, and the first table to --parquet."""
    if options.json:
        print(json.dumps(value, indent=2, ensure_ascii=False))
    else:
        print("\n\n".join(table.to_text() for table in tables))
    if options.parquet:
        tables[0].write_parquet(Path(options.parquet))


def _told(failures: Any) -> int:
    for name, reason in failures.items():
        print(f"magnetar: {name}: {reason}", file=sys.stderr)
    return 1 if failures else 0
