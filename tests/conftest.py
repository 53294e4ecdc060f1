"""Hypothesis profiles for the property tests: ``ci`` by default, ``--hypothesis-profile=full`` for thousands.

And a Redis server for the tests that need one.
"""

import shutil

import pytest
from hypothesis import HealthCheck, settings

from tests.redis_server import RunningRedis, free_port

settings.register_profile(
    "ci", max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
settings.register_profile("full", settings.get_profile("ci"), max_examples=10_000, derandomize=False)
settings.load_profile("ci")


@pytest.fixture(scope="session")
def redis_port(tmp_path_factory):
    """The port of a real Redis server that lives as long as the tests."""
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed; `make services` installs it")
    pytest.importorskip("redis", reason="the package redis is not installed; pip install 'pytest-regional[redis]'")
    port = free_port()
    folder = tmp_path_factory.mktemp("redis")
    with RunningRedis(port, folder):
        yield port
