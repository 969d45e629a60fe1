"""The process's log: lines for people, or one JSON object a line for machines (``logFormat``).

While an HTTP request is served its id stands in ``REQUEST_ID``; every line logged meanwhile, by
whatever layer, carries it.
"""

import json
import logging
import sys
import threading
import time
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Final, TextIO

import orjson

from magnetar.broker.config import BrokerConfig

logger = logging.getLogger(__name__)

_PROCESS: Final = "process_name"
"""Attribute of a record: which of several processes with one log it is from."""
REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")
FIELDS = "fields"
"""Attribute of a record (``extra={"fields": {...}}``): values that JSON lines show by name."""


class TextFormatter(logging.Formatter):
    """``time LEVEL logger message``, then the request id where there is one."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        if hasattr(record, "plain"):  # bookkeeper/process_shutdown.py
            return record.message
        text = super().formatMessage(record)
        if process := getattr(record, _PROCESS, ""):
            text = f"{process} {text}"
        request_id = REQUEST_ID.get()
        # An audit line names its id itself.
        return f"{text} [{request_id}]" if request_id and not hasattr(record, FIELDS) else text


class JsonFormatter(logging.Formatter):
    """One object a line: time (RFC 3339, UTC, milliseconds), level, logger, message, request."""

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.gmtime(record.created)
        line: dict[str, Any] = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', seconds)}.{int(record.msecs):03}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": _message(record),
        }
        if process := getattr(record, _PROCESS, ""):
            line["process"] = process
        if request_id := REQUEST_ID.get():
            line["request"] = request_id
        line.update(getattr(record, FIELDS, {}))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        try:
            # A lone surrogate (bytes of a file name) isn't UTF-8: it mustn't cost the whole line.
            return orjson.dumps(_clean(line), default=str).decode()
        except TypeError:  # a number of more than 64 bits, a surrogate further inside
            return json.dumps(line, default=str)


def set_up_logging(config: BrokerConfig, stream: TextIO | None = None) -> None:
    """Log to ``stream`` (stderr by default) as the settings say; replaces earlier handlers."""
    set_up_log(config.log_level, config.log_format, stream)


def set_up_log(level: str, form: str, stream: TextIO | None = None) -> None:
    """As ``set_up_logging``, for processes with other settings. ``form``: text or json."""
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)


def log_what_nobody_catches() -> None:
    """From now on also warnings of libraries, and what ends a thread or this process."""
    logging.captureWarnings(True)

    def of_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_type is SystemExit or args.exc_value is None:
            return
        name = "a thread" if args.thread is None else args.thread.name
        logger.error("in thread %s", name, exc_info=args.exc_value)

    def of_object(args: "sys.UnraisableHookArgs") -> None:
        what = args.err_msg or "exception ignored in"
        logger.error("%s: %r", what, args.object, exc_info=args.exc_value or False)

    def of_process(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        logger.critical("not caught", exc_info=(kind, error, trace))

    threading.excepthook, sys.unraisablehook, sys.excepthook = of_thread, of_object, of_process


def name_process(name: str) -> None:
    """Each line of this process's log has ``name``: others write to the same log."""
    new_record = logging.getLogRecordFactory()

    def named(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = new_record(*args, **kwargs)
        setattr(record, _PROCESS, name)
        return record

    logging.setLogRecordFactory(named)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError):  # arguments that don't fit: the line is worth more
        return f"{record.msg} {record.args}"


def _clean(line: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.encode(errors="replace").decode() if isinstance(value, str) else value
        for name, value in line.items()
    }
