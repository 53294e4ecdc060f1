"""What the backend keeps in this process, and how to be as new."""

from __future__ import annotations

from pytest_regional.reference import pre_grad, share
from pytest_regional.reference.caching import errors, remote


def forget() -> None:
    """Forget compiled regions, warnings given, and servers that did not answer; what is on disk stays."""
    share.forget()
    pre_grad.forget()
    errors.forget_warnings()
    remote.forget_failures()
