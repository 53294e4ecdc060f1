"""Random annotated programs, one campaign for each mode, which goes on past what it finds and fails at its end."""

import pytest

pytestmark = pytest.mark.regional_compile(expects_regions=False)


@pytest.mark.quick
@pytest.mark.regional_compile(requires=("regions", "full_graph"))
def test_aten(regional, regional_fuzz):
    """Partitions, order and sharing of ATen graphs without capture: many graphs of each program."""
    if regional.device_under_test.kind == "cuda-emulated":
        pytest.skip("no code is generated in the mode 'aten': device cpu runs it")

    regional_fuzz.run("aten")


@pytest.mark.regional_compile(requires=("regions",))
def test_graph(regional, regional_fuzz):
    """The same without Dynamo, for most programs: twice as many in the same time."""
    if regional.device_under_test.kind == "cuda-emulated":
        pytest.skip("no code is generated in the mode 'graph': device cpu runs it")

    regional_fuzz.run("graph")


@pytest.mark.regional_compile(requires=("regions",))
def test_interpret(regional, regional_fuzz):
    """Capture, partitions, passes and caches; what Inductor would compile is interpreted."""
    if regional.device_under_test.kind == "cuda-emulated":
        pytest.skip("no code is generated in the mode 'interpret': device cpu runs it")

    regional_fuzz.run("interpret")


@pytest.mark.regional_compile(device="cuda-emulated", requires=("inductor_code",))
def test_emulated(regional_fuzz):
    """GPU code, interpreted: no C++ compiler to wait for."""
    regional_fuzz.run("emulated")


def test_native(regional, regional_fuzz):
    """C++ code, or a GPU."""
    if regional.device_under_test.kind == "cuda-emulated":
        pytest.skip("an emulated GPU is the mode 'emulated'")

    regional_fuzz.run("native")
