"""The server's log: one line per request and two per job, as text or, with NNCLR_LOG_FORMAT=json, as JSON.

    {"time": "2026-10-01T12:00:00.123Z", "level": "info", "logger": "nnclr_hub.access",
     "message": "POST /api/v1/embed 200", "id": "...", "method": "POST", "route": "/api/v1/embed", "status": 200,
     "ms": 31.7, "images": 8}

It never contains keys, bodies or file names.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal

LogFormat = Literal["text", "json"]


def configure_logging(form: LogFormat = "text") -> None:
    """Send all log lines, including those of uvicorn, to standard error in one format."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Json() if form == "json" else Text())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    logging.getLogger("uvicorn.access").disabled = True  # it logs raw paths; RequestLog has the same information
    for name in ("httpx", "httpcore", "huggingface_hub", "PIL", "asyncio", "faiss"):
        logging.getLogger(name).setLevel(logging.WARNING)


class Json(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=True, default=str)


class Text(logging.Formatter):
    """Time, level and message, followed by the other fields."""

    def format(self, record: logging.LogRecord) -> str:
        fields = dict(getattr(record, "fields", {}))
        for name in ("method", "route", "status", "kind"):  # the message contains these
            fields.pop(name, None)
        rest = "".join(f" {name}={value}" for name, value in fields.items())
        text = f"{_time(record)} {record.levelname.lower():7} {record.getMessage()}{rest}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
