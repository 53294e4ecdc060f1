"""Compiled programs and regions as files: they give in a new process, bit for bit, what they gave here."""

import os
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import pytest_regional.testing
from pytest_regional.reference import CacheWarning, RegionConfigError, artifacts
from pytest_regional.reference.caching import container
from pytest_regional.reference.caching.container import write_artifact
from tests.reference.artifact_programs import (
    block,
    conditional,
    custom,
    inputs,
    model,
    product,
    results,
    run_all_loaded,
    structured,
)

PROGRAMS = {"block": block, "custom": custom}


def compile_named(name):
    """Compile a program by its name, and return it with what it computes."""
    if name == "model":
        owner = model()
        compiled = artifacts.compile_program(owner, inputs()[0])
        return compiled, results(compiled, inputs()[0], parameters=list(owner.parameters()))
    if name == "region":
        compiled = artifacts.compile_region(dynamo_graph(custom), *inputs())
        return compiled, results(lambda *values: compiled(*values)[0], *inputs())
    compiled = artifacts.compile_program(PROGRAMS[name], *inputs())
    return compiled, results(compiled, *inputs())


def dynamo_graph(fn):
    """Return the graph that Dynamo makes of ``fn``, which holds ``autograd_function_apply`` as it is."""
    seen = []

    def keep(gm, _):
        seen.append(gm)
        return gm

    torch.compile(fn, backend=keep, fullgraph=True)(*inputs())
    torch._dynamo.reset()
    return seen[0]


@pytest.mark.usefixtures("warm_process")
def test_a_new_process_loads_and_gives_the_same_bits(tmp_path):
    expected = {}
    with pytest_regional.testing.regional() as harness:
        for name in ("block", "custom", "model", "region"):
            before = harness.counters.region_compiles
            compiled, expected[name] = compile_named(name)
            compiled.save(tmp_path / name)
            assert harness.counters.region_compiles > before
            harness._reset()
        # An empty cache folder: the generated code, its libraries too, comes from the artifacts.
        with pytest_regional.testing.regional(expects_regions=False) as elsewhere:
            answer = elsewhere.in_new_process(run_all_loaded, str(tmp_path), tuple(expected))
    assert answer.counters.region_compiles == 0
    for name, values in expected.items():
        assert len(answer.value[name]) == len(values), name
        assert all(map(torch.equal, answer.value[name], values)), name


@pytest.mark.parametrize("name", ["block", "custom", "model"])
def test_artifacts_saved_before_any_backward_train(name, tmp_path):
    owner = model()
    arguments = (owner, inputs()[0]) if name == "model" else (PROGRAMS[name], *inputs())
    artifacts.compile_program(*arguments).save(tmp_path / "artifact")
    loaded = artifacts.load(tmp_path / "artifact", owner)
    eager = owner if name == "model" else PROGRAMS[name]
    count = 1 if name == "model" else 2
    actual, expected = results(loaded, *inputs()[:count]), results(eager, *inputs()[:count])
    torch.testing.assert_close(actual, expected)


def test_the_gradient_of_a_function_is_its_own(tmp_path):
    artifacts.compile_program(custom, *inputs()).save(tmp_path / "artifact")
    x, w = inputs()
    artifacts.load(tmp_path / "artifact")(x, w).sum().backward()
    inner = (x @ w).detach()
    torch.testing.assert_close(x.grad, 3 * inner.cos() @ w.detach().T + 1)


def test_structure_and_constants_of_the_result(tmp_path):
    artifacts.compile_program(structured, *inputs()).save(tmp_path / "artifact")
    loaded = artifacts.load(tmp_path / "artifact")(*inputs())
    expected = structured(*inputs())
    assert loaded["pair"][1] == 3
    torch.testing.assert_close([loaded["sum"], loaded["pair"][0]], [expected["sum"], expected["pair"][0]])


def test_a_program_that_no_cache_takes(tmp_path):
    """PyTorch makes no key for ``torch.cond``, so the outer cache is bypassed; a file needs no key."""
    values = [value.detach() for value in inputs()]
    artifacts.compile_program(conditional, *values).save(tmp_path / "artifact")
    loaded = artifacts.load(tmp_path / "artifact")
    for sign in (1, -1):
        x, w = values[0].abs() * sign, values[1]
        torch.testing.assert_close(loaded(x, w), conditional(x, w))


def test_several_sizes(tmp_path):
    artifacts.compile_program(product, *inputs(), dynamic=True).save(tmp_path / "artifact")
    loaded = artifacts.load(tmp_path / "artifact")
    with pytest_regional.testing.regional(expects_regions=False) as harness, harness.no_compile():
        for size in (3, 7):
            torch.testing.assert_close(loaded(*inputs(size)), product(*inputs(size)))


def test_inputs_that_it_was_not_compiled_for(tmp_path):
    artifacts.compile_program(product, *inputs()).save(tmp_path / "artifact")
    with pytest.raises(artifacts.ArtifactError, match=r"size mismatch at index 0. expected 4, actual 5.*dynamic=True"):
        artifacts.load(tmp_path / "artifact")(*inputs(5))


def test_a_module_that_was_trained_before():
    owner = model()
    owner(inputs()[0]).sum().backward()
    gradients = [parameter.grad for parameter in owner.parameters()]
    artifacts.compile_program(owner, inputs()[0])
    assert all(parameter.grad is kept for parameter, kept in zip(owner.parameters(), gradients, strict=True))


def test_a_module_of_pytorchs_own(tmp_path):
    layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 4))
    artifacts.compile_program(layers, inputs()[0]).save(tmp_path / "artifact")
    loaded = artifacts.load(tmp_path / "artifact", layers)
    assert torch.equal(loaded(inputs()[0]), layers(inputs()[0]))


def test_a_module_needs_its_module(tmp_path):
    artifacts.compile_program(model(), inputs()[0]).save(tmp_path / "artifact")
    with pytest.raises(artifacts.ArtifactError, match=r"load\(path, module\)"):
        artifacts.load(tmp_path / "artifact")


def test_other_parameters_than_those_it_was_compiled_with(tmp_path):
    artifacts.compile_program(model(), inputs()[0]).save(tmp_path / "artifact")
    other = model()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(2)
    loaded = artifacts.load(tmp_path / "artifact", other)
    torch.testing.assert_close(loaded(inputs()[0]), other(inputs()[0]))


def test_a_region_of_aten_ops_with_settings(tmp_path):
    def plain(x, w):
        return (torch.sin(x @ w),)

    values = [value.detach() for value in inputs()]
    compiled = artifacts.compile_region(make_fx(plain)(*values), *values, configs={"max_fusion_size": 2})
    compiled.save(tmp_path / "artifact")
    torch.testing.assert_close(artifacts.load(tmp_path / "artifact")(*values)[0], plain(*values)[0])


def test_a_setting_that_inductor_does_not_have():
    with pytest.raises(RegionConfigError, match="max_autotun"):
        artifacts.compile_region(make_fx(lambda x: (x + 1,))(torch.ones(2)), torch.ones(2), configs={"max_autotun": 1})


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "artifact"
    artifacts.compile_program(product, *inputs()).save(path)
    return path


@pytest.fixture
def with_kernels(tmp_path):
    path = tmp_path / "artifact"
    artifacts.compile_program(block, *inputs()).save(path)
    return path


def truncated(path):
    path.write_bytes(path.read_bytes()[:-100])


def flipped(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def emptied(path):
    path.write_bytes(b"")


def replaced(path):
    path.write_text("# not an artifact\n")


def folder(path):
    path.unlink()
    path.mkdir()


def removed(path):
    path.unlink()


def opened(path):
    path.parent.chmod(0o777)


def foreign_torch(path):
    path.write_bytes(_resealed(path, torch="2.99.0 (elsewhere)"))


def foreign_machine(path):
    path.write_bytes(_resealed(path, cpu="linux riscv"))


def _resealed(path, **fields):
    import dataclasses

    from pytest_regional.reference.caching.container import seal, this_machine, unseal

    payload = unseal(path.read_bytes(), kind=artifacts.PROGRAM)
    return seal(payload, kind=artifacts.PROGRAM, machine=dataclasses.replace(this_machine(), **fields))


DAMAGES = {
    truncated: container.ArtifactError,
    flipped: container.ArtifactError,
    emptied: container.ArtifactError,
    replaced: container.ArtifactError,
    folder: container.ArtifactError,
    removed: container.ArtifactNotFoundError,
    opened: container.ArtifactError,
    foreign_torch: container.ArtifactError,
    foreign_machine: container.ArtifactError,
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_each_damage_has_an_error_that_names_the_file(saved, damage):
    damage(saved)
    with pytest.raises(DAMAGES[damage]) as info:
        artifacts.load(saved)
    assert isinstance(info.value, container.ArtifactError)
    assert saved.name in str(info.value) or str(saved.parent) in str(info.value)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_load_or_compile_compiles_again(saved, damage):
    damage(saved)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        compiled = artifacts.load_or_compile(saved, product, *inputs())
    said = [str(warning.message) for warning in seen if issubclass(warning.category, CacheWarning)]
    torch.testing.assert_close(compiled(*inputs()), product(*inputs()))
    quiet = damage is removed
    assert quiet == (not said)
    if damage not in (folder, opened):  # where nothing can be saved
        with pytest_regional.testing.regional(expects_regions=False) as harness, harness.no_compile():
            artifacts.load_or_compile(saved, product, *inputs())


def test_load_or_compile_compiles_once(tmp_path):
    path = tmp_path / "below" / "artifact"
    first = artifacts.load_or_compile(path, product, *inputs())
    with pytest_regional.testing.regional(expects_regions=False) as harness, harness.no_compile():
        second = artifacts.load_or_compile(path, product, *inputs())
    assert all(map(torch.equal, results(first, *inputs()), results(second, *inputs())))


def test_a_region_where_a_program_was_expected(tmp_path):
    artifacts.compile_region(make_fx(lambda x: (x + 1,))(torch.ones(2)), torch.ones(2)).save(tmp_path / "artifact")
    with pytest.warns(CacheWarning, match="compiled region, not a compiled program"):
        artifacts.load_or_compile(tmp_path / "artifact", product, *inputs())


def test_a_program_that_names_what_is_not_here(tmp_path, monkeypatch):
    artifacts.compile_program(product, *inputs()).save(tmp_path / "artifact")

    def missing(data):
        raise AttributeError("'_OpNamespace' 'mine' object has no attribute 'scale'")

    monkeypatch.setattr(artifacts, "load_function", missing)
    with pytest.raises(artifacts.ArtifactError, match=r"has no attribute 'scale'.*Import the modules"):
        artifacts.load(tmp_path / "artifact")


def test_a_payload_that_no_program_wrote(tmp_path):
    write_artifact(tmp_path / "artifact", b"not a pickle", artifacts.PROGRAM)
    with pytest.raises(artifacts.ArtifactError):
        artifacts.load(tmp_path / "artifact")


def test_saving_over_a_folder(tmp_path):
    compiled = artifacts.compile_program(product, *inputs())
    with pytest.raises(container.ArtifactError):
        compiled.save(tmp_path)


def test_saving_where_others_can_write(tmp_path):
    compiled = artifacts.compile_program(product, *inputs())
    tmp_path.chmod(0o777)
    with pytest.raises(container.ArtifactError, match="chmod"):
        compiled.save(tmp_path / "artifact")
    assert list(tmp_path.iterdir()) == []


def test_no_compiler_is_needed_to_load(with_kernels, monkeypatch, tmp_path):
    """In an empty cache folder, with no C++ compiler in reach."""
    expected = results(artifacts.load(with_kernels), *inputs())
    torch._dynamo.reset()
    torch._inductor.utils.clear_caches()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "elsewhere"))

    def refuse(*args, **kwargs):
        raise AssertionError("a compiler was called")

    monkeypatch.setattr(torch._inductor.cpp_builder.CppBuilder, "build", refuse)
    assert all(map(torch.equal, results(artifacts.load(with_kernels), *inputs()), expected))
    assert any(Path(tmp_path / "elsewhere").rglob("*.so"))


@pytest.mark.parametrize("suffix", [".so", ".py"])
def test_generated_code_that_was_tampered_with_is_replaced(with_kernels, suffix, tmp_path):
    expected = results(artifacts.load(with_kernels), *inputs())
    folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    tampered = [path for path in folder.rglob(f"*{suffix}") if path.is_file()]
    assert tampered
    torch._dynamo.reset()
    torch._inductor.utils.clear_caches()
    copies = tmp_path / "copies"
    for path in tampered:  # a new file: this process has the old one mapped into its memory
        shutil.copy(path, copies)
        data = copies.read_bytes()
        copies.write_bytes(data[: len(data) // 2])
        os.replace(copies, path)
    assert all(map(torch.equal, results(artifacts.load(with_kernels), *inputs()), expected))
