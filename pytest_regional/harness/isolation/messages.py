"""The state of warnings and logging: filters, hooks, loggers."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from pytest_regional.harness.isolation.watched import (
    MISSING,
    ImportedModules,
    Leak,
    Settings,
    State,
    Watched,
    attribute,
    imported_modules,
    set_by_imports,
)


def _set_warning_filters(wanted: list[Any]) -> None:
    warnings.filters[:] = wanted  # type: ignore[index]
    with warnings.catch_warnings():
        pass  # leaving it is the public way to make Python read the filters again


def _loggers() -> dict[str, Any]:
    """Return the loggers that differ from new ones: level, whether disabled, whether propagating, handlers."""
    found = {}
    for name, logger in [("root", logging.root), *logging.root.manager.loggerDict.items()]:
        if isinstance(logger, logging.Logger) and (
            logger.level or logger.handlers or logger.disabled or not logger.propagate
        ):
            found[name] = (logger.level, logger.disabled, logger.propagate, tuple(logger.handlers))
    found[_MODULES] = imported_modules()  # type: ignore[assignment]
    return found


#: The key of the imported modules: packages set levels and handlers when they are imported.
_MODULES = "(modules)"
_AS_MADE = (logging.NOTSET, False, True, ())


class _Loggers(Settings):
    """Loggers; a change during an import is the module's, unless the logger had been changed before."""

    def differences(self, before: Mapping[str, Any]) -> Iterator[Leak]:
        """Yield each logger that changed."""
        imported = imported_modules() is not before[_MODULES]
        for leak in super().differences(before):
            if leak.before is not MISSING or not imported:
                yield leak


def _same_logger(before: Any, now: Any) -> bool:
    if isinstance(before, ImportedModules):
        return True
    was, is_now = (_AS_MADE if each is MISSING else each for each in (before, now))
    if was[:3] != is_now[:3]:
        return False
    return bool(was[3] == is_now[3] or _own_handlers(was[3]) == _own_handlers(is_now[3]))


def _own_handlers(handlers: tuple[Any, ...]) -> list[Any]:
    """Return the handlers that are not pytest's, which are added and removed with each phase."""
    return [handler for handler in handlers if not type(handler).__module__.startswith("_pytest")]


def _set_logger(name: str, wanted: Any) -> None:
    logger = logging.root if name == "root" else logging.getLogger(name)
    level, logger.disabled, logger.propagate, handlers = _AS_MADE if wanted is MISSING else wanted
    logger.setLevel(level)
    running = [handler for handler in logger.handlers if handler not in _own_handlers(tuple(logger.handlers))]
    logger.handlers[:] = [*_own_handlers(handlers), *running]


MESSAGES: tuple[Watched, ...] = (
    attribute(warnings, "showwarning"),
    set_by_imports("warning filters", lambda: list(warnings.filters), _set_warning_filters),
    State("logging disabled", lambda: logging.root.manager.disable, logging.disable),
    _Loggers("logger ", _loggers, _set_logger, same=_same_logger),
)

__all__ = ["MESSAGES"]
