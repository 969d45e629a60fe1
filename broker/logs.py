"""The process's log: lines for people, or one JSON object a line for machines (``logFormat``).

While an HTTP request is served its id stands in ``REQUEST_ID``; every line logged meanwhile, by
whatever layer, carries it.
"""

from __future__ import annotations

import logging
import sys
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from typing import TextIO

    from broker.config import BrokerConfig

__all__ = ["REQUEST_ID", "JsonFormatter", "TextFormatter", "set_up_log", "set_up_logging"]

REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")
FIELDS = "fields"
"""Attribute of a record (``extra={"fields": {...}}``): values that JSON lines show by name."""


class TextFormatter(logging.Formatter):
    """``time LEVEL logger message``, then the request id where there is one."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        text = super().formatMessage(record)
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
            "message": record.getMessage(),
        }
        if request_id := REQUEST_ID.get():
            line["request"] = request_id
        line.update(getattr(record, FIELDS, {}))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        # A lone surrogate (bytes of a file name) isn't UTF-8: it mustn't cost the whole line.
        return orjson.dumps(_clean(line), default=str).decode()


def set_up_logging(config: BrokerConfig, stream: TextIO | None = None) -> None:
    """Log to ``stream`` (stderr by default) as the settings say; replaces earlier handlers."""
    set_up_log(config.log_level, config.log_format, stream)


def set_up_log(level: str, form: str, stream: TextIO | None = None) -> None:
    """As ``set_up_logging``, for processes with other settings. ``form``: text or json."""
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)


def _clean(line: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.encode(errors="replace").decode() if isinstance(value, str) else value
        for name, value in line.items()
    }
