"""PyTorch's structured trace."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator


@contextlib.contextmanager
def structured_trace_off() -> Iterator[None]:
    """Keep pytest from switching PyTorch's structured trace on.

    The logger ``torch.__trace`` (2.11 to 2.15) does not propagate and is on whenever it has a handler. pytest 9.2 adds
    its capture handler to every logger that does not propagate, so every graph of every compile was printed into the
    report. It has none meanwhile, unless ``TORCH_TRACE`` asks for the trace. Remove when PyTorch tells handlers apart.
    """
    import torch  # noqa: F401 - its import sets the logger up

    logger = logging.getLogger("torch.__trace")
    if os.environ.get("TORCH_TRACE"):
        yield
        return
    propagate, handlers = logger.propagate, list(logger.handlers)
    # pytest's session-long handlers are there already; those of each phase go to loggers that do not propagate.
    logger.propagate, logger.handlers = True, []
    try:
        yield
    finally:
        # pytest's are left off: the phase that they were made for may be over.
        logger.propagate = propagate
        logger.handlers = [handler for handler in handlers if not type(handler).__module__.startswith("_pytest")]
