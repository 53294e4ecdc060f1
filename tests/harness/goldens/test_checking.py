"""``assert_golden``: what is compared, forms, names, and mistakes of the caller."""

from __future__ import annotations

import pytest
import torch

from pytest_regional import GoldenError, testing
from pytest_regional._base.errors import RegionalRuntimeError, RegionalValueError
from pytest_regional._torch import torch_version
from pytest_regional.harness.goldens.checking import FACTS
from pytest_regional.harness.goldens.file import GoldenFile, GoldenKey, device_class
from pytest_regional.testing import regional
from tests.harness.programs import in_region, pair, product, two_products, unannotated

from .writing import compare, difference, goldens_at, write


@pytest.fixture
def path(tmp_path):
    return tmp_path / "test_it.txt"


@pytest.fixture
def r(path):
    with regional("reference", "cpu", expects_regions=False) as harness:
        harness.goldens = goldens_at(path)
        yield harness


def lines(path, fact):
    (devices,) = GoldenFile.read(path).goldens.values()
    (entry,) = devices["cpu"].values()
    below = entry.text[entry.text.index(fact) + 1 :]
    return [line.strip() for line in below[: next((n for n, one in enumerate(below) if one in FACTS), None)]]


def test_facts_of_a_program(r, path):
    write(r, path, product, *pair(r))
    assert lines(path, "regions") == ["inference, product: 1 op, 1 partition", "inference, outside: 1 op"]
    assert lines(path, "ops") == ["inference", "product: aten.mm.default", "aten.sin.default"]
    assert lines(path, "order") == ["inference", "start > [product] > aten.sin.default"]
    assert lines(path, "fusions") == ["inference, product", "call: aten.mm.default"]
    assert lines(path, "passes") == ["graphs: 1", "regions: 1", "region_compiles: 1"]
    # 4 x 8 of 4 x 8, 8 x 8 and 4 x 8.
    assert lines(path, "memory") == ["inference, product: 0.25 times inputs and outputs"]
    assert lines(path, "key")[:2] == [
        "input 0: torch.float32 [4, 8] [8, 1] cpu",
        "input 1: torch.float32 [8, 8] [8, 1] cpu",
    ]
    assert "the precision of products: highest" in lines(path, "key")


def shared(x, w):
    with in_region("first"):
        h = x @ w
    h = torch.tanh(h)
    with in_region("second"):
        return h @ w


def test_a_partition_that_shares_code(r, path):
    write(r, path, shared, *pair(r))
    assert lines(path, "regions") == [
        "inference, first: 1 op, 1 partition",
        "inference, second: 1 op, 1 partition, 1 shared with inference, first",
        "inference, outside: 1 op",
    ]
    assert "region_compiles: 1" in lines(path, "passes")


def test_what_the_test_compiled_before_changes_nothing(r, path):
    write(r, path, product, *pair(r))
    r.assert_parity(product, *pair(r))
    compare(r, path, product, *pair(r))
    compare(r, path, product, *pair(r))


def test_a_record_and_a_program_have_the_same_golden(r, path):
    record = write(r, path, product, *pair(r))
    compare(r, path, record)
    r.restart()
    again = r.compile(lambda x, w: product(x, w))
    compare(r, path, r.run(again, *pair(r), as_is=True), facts=FACTS)


def test_a_difference(r, path):
    write(r, path, product, *pair(r, requires_grad=True))
    found = difference(r, path, unannotated, *pair(r, requires_grad=True))
    assert found[0] == "forward: aten.mm.default moved out of region product"
    assert found[1].startswith("backward: ")
    assert found[1].endswith("moved out of region product")
    assert found[2:4] == ["forward: 0 calls of regions, was 1", "backward: 0 calls of regions, was 1"]


@pytest.mark.parametrize("backend", ["torch", "inductor", "aot_eager"])
def test_other_backends(backend, path):
    with regional(backend, "cpu") as r:
        write(r, path, product, *pair(r, requires_grad=True))
        assert backend != "inductor" or "cpp_fused_sin: aten.sin.default" in lines(path, "fusions")
        compare(r, path, product, *pair(r, requires_grad=True))
        difference(r, path, unannotated, *pair(r, requires_grad=True))


def test_a_backend_without_aotautograd(path):
    from pytest_regional import BackendSpec

    with regional(BackendSpec("plain", lambda: lambda gm, inputs: gm.forward), "cpu", expects_regions=False) as r:
        write(r, path, product, *pair(r))
        assert lines(path, "ops") == ["inference", "product: matmul", "sin"]


def test_an_earlier_version_holds(r, path):
    write(r, path, product, *pair(r))
    key, (major, minor) = GoldenKey("test_it", "reference"), torch_version()
    file = GoldenFile.read(path)
    text = file.holding(key, "cpu", (major, minor))[1].text
    file.remove(key)
    file.put(key, "cpu", (major, minor - 1), text)
    path.write_text(str(file))
    compare(r, path, product, *pair(r))
    file.remove(key)
    file.put(key, "cpu", (major, minor + 1), text)
    path.write_text(str(file))
    with pytest.raises(GoldenError, match=rf"It is there from torch {major}.{minor + 1} on cpu"):
        compare(r, path, product, *pair(r))


def test_a_missing_golden_says_what_to_do(r, path):
    with pytest.raises(GoldenError, match=r"test_it.txt has no golden of test_it \(reference\) for torch .* on cpu"):
        compare(r, path, product, *pair(r))
    with pytest.raises(GoldenError, match=r"'pytest --regional-update' writes it"):
        compare(r, path, product, *pair(r))


def test_several_goldens_have_names(r, path):
    write(r, path, product, *pair(r))
    write(r, path, two_products, *pair(r), name="two")
    compare(r, path, product, *pair(r))
    compare(r, path, two_products, *pair(r), name="two")
    r.goldens = goldens_at(path, update=True)
    r.assert_golden(product, *pair(r))
    with pytest.raises(RegionalValueError, match=r"two goldens of test_it differ and have one name, ''"):
        r.assert_golden(two_products, *pair(r))


@pytest.mark.parametrize("name", ["a | b", "a\nb", " a", "a, b"])
def test_a_name_that_cannot_be(r, name):
    with pytest.raises(RegionalValueError, match="the name of a golden is one line"):
        r.assert_golden(product, *pair(r), name=name)


def test_unknown_facts(r):
    with pytest.raises(RegionalValueError, match=r"unknown fact 'fusion'. Did you mean 'fusions'\? Known: "):
        r.assert_golden(product, *pair(r), facts=("regions", "fusion"))
    with pytest.raises(RegionalValueError, match="facts= is empty"):
        r.assert_golden(product, *pair(r), facts=())


def test_mistakes_of_the_caller(r):
    with pytest.raises(TypeError, match="unexpected keyword argument 'fact'"):
        r.assert_golden(product, *pair(r), fact=("regions",))
    with pytest.raises(TypeError, match="assert_golden needs a function or module"):
        r.assert_golden(product(*pair(r)))
    with pytest.raises(TypeError, match="takes no inputs"):
        r.assert_golden(r.run(product, *pair(r)), *pair(r))


def test_a_record_in_which_nothing_compiled(r):
    compiled = r.compile(product)
    r.run(compiled, *pair(r), as_is=True)
    with pytest.raises(RegionalValueError, match="nothing was compiled in this run"):
        r.assert_golden(r.run(compiled, *pair(r), as_is=True))


def test_outside_of_pytest(r):
    r.goldens = None
    with pytest.raises(RegionalRuntimeError, match="assert_golden needs a test with the marker"):
        testing.assert_golden(product, *pair(r))


def test_experiments_of_a_search_decide_nothing(r, path):
    r.goldens = goldens_at(path, update=True)

    def check(program, *inputs):
        r.assert_golden(program, *inputs, name="in the search")
        raise AssertionError("always")

    r.blame(product, *pair(r), check=check)
    assert r.goldens.used == {}


def test_classes_of_devices():
    from pytest_regional.harness.devices.device import DeviceUnderTest

    assert device_class(DeviceUnderTest("cpu", "cpu")) == "cpu"
    assert device_class(DeviceUnderTest("cuda-emulated:a100", "cuda-emulated", "a100")) == "cuda-emulated:a100"
