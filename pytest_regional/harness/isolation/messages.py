"""What becomes of warnings and log records: filters, hooks, loggers."""

from __future__ import annotations

import logging
import warnings
from typing import Any

from .leak import MISSING
from .watched import Settings, State, Watched, attribute, set_by_imports


def _set_warning_filters(wanted: list[Any]) -> None:
    warnings.filters[:] = wanted  # type: ignore[index]
    with warnings.catch_warnings():
        pass  # leaving it is the public way to have Python look at the filters anew


def _loggers() -> dict[str, Any]:
    manager = logging.root.manager
    found = {name: logger for name, logger in manager.loggerDict.items() if isinstance(logger, logging.Logger)}
    return {name: _of_logger(logger) for name, logger in {"root": logging.root, **found}.items()}


def _of_logger(logger: logging.Logger) -> tuple[Any, ...]:
    handlers = tuple(logger.handlers) if logger.handlers else ()
    return logger.level, logger.disabled, logger.propagate, handlers


def _same_logger(before: Any, now: Any) -> bool:
    if before is MISSING or now is MISSING:  # made by an import, or by whoever logs first
        return True
    return bool(before[:3] == now[:3] and (before[3] == now[3] or _own_handlers(before[3]) == _own_handlers(now[3])))


def _own_handlers(handlers: tuple[Any, ...]) -> list[Any]:
    """Return the handlers that are not pytest's, which come and go with each phase."""
    return [handler for handler in handlers if not type(handler).__module__.startswith("_pytest")]


def _set_logger(name: str, wanted: Any) -> None:
    logger = logging.root if name == "root" else logging.getLogger(name)
    level, logger.disabled, logger.propagate, handlers = wanted
    logger.setLevel(level)
    running = [handler for handler in logger.handlers if handler not in _own_handlers(tuple(logger.handlers))]
    logger.handlers[:] = [*_own_handlers(handlers), *running]


MESSAGES: tuple[Watched, ...] = (
    attribute(warnings, "showwarning"),
    set_by_imports("warning filters", lambda: list(warnings.filters), _set_warning_filters),
    State("logging disabled", lambda: logging.root.manager.disable, logging.disable),
    Settings("logger ", _loggers, _set_logger, same=_same_logger),
)

__all__ = ["MESSAGES"]
