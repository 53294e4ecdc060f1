"""How long to fuzz, for programs that call campaigns; options of pytest are checked with it without this package."""

from pytest_regional._base.limits import Budget

__all__ = ["Budget"]
