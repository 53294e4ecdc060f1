"""Hypothesis profiles for the property tests: ``ci`` by default, ``--hypothesis-profile=full`` for thousands."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "ci", max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
settings.register_profile("full", settings.get_profile("ci"), max_examples=10_000, derandomize=False)
settings.load_profile("ci")
