"""How long to fuzz, for programs that call campaigns; options of pytest are checked with it without this package."""

from pytest_regional._base.budget import Budget

__all__ = ["Budget"]
