"""Random annotated programs, one campaign for each lane, which goes on past what it finds and fails at its end."""

import pytest

pytestmark = pytest.mark.regional_compile(expects_regions=False)


@pytest.mark.regional_compile(requires=("regions",))
def test_structure(regional, regional_fuzz):
    """Capture, partitions, passes and caches; what Inductor would compile is interpreted."""
    if regional.device_under_test.kind == "cuda-emulated":
        pytest.skip("no code is generated in the lane 'structure': device cpu runs it")

    result = regional_fuzz.run("structure")

    assert result.bad == 0


@pytest.mark.regional_compile(device="cuda-emulated")
def test_fast(regional_fuzz):
    """GPU code, interpreted: no C++ compiler to wait for."""
    result = regional_fuzz.run("fast")

    assert result.bad == 0


def test_full(regional, regional_fuzz):
    """C++ code, or a GPU."""
    if regional.device_under_test.kind == "cuda-emulated":
        pytest.skip("an emulated GPU is the lane 'fast'")

    result = regional_fuzz.run("full")

    assert result.bad == 0
