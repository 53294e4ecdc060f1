"""Programs that nobody thought of, checked on the backend that the team trains with."""

import pytest


@pytest.mark.regional_compile(expects_regions=False)
def test_programs(regional_fuzz):
    regional_fuzz.run("interpret")
