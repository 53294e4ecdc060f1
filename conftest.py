"""Options of pytest itself for this repository's own tests."""

pytest_plugins = ["pytester"]
