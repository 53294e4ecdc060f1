"""Entries in PyTorch's portable artifacts: saved here, loaded elsewhere, and checked there as any others are."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch.compiler._cache import CacheArtifactManager

from pytest_regional import region
from pytest_regional.reference import CacheWarning
from pytest_regional.reference.caching import container
from pytest_regional.reference.caching.container import KIND, reset_warnings, this_machine
from tests.faults.caching.trials import flipped
from tests.reference.caches import compiled, entries, outcomes

MISS = {"hit": 0, "miss": 1, "bypass": 0, "saved": 1}
HIT = {"hit": 1, "miss": 0, "bypass": 0, "saved": 0, "regions": 0}


@pytest.fixture(autouse=True)
def nothing_recorded():
    reset_warnings()
    with CacheArtifactManager.with_fresh_cache():
        yield


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Return a function that goes to another, empty cache folder."""

    def go(name="elsewhere"):
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / name))

    return go


def program(x, w):
    with region("mlp"):
        h = x @ w.T
    return h + x


def trained(x, w):
    return program(x, w).sum()


def inputs(size=4, training=False):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(size, size, generator=generator).requires_grad_(training) for _ in range(2)]


def look_up(fn=program, size=4, training=False, **options):
    """Compile and run; return the values, gradients among them, and the outcomes."""
    arguments = inputs(size, training)
    with outcomes() as seen:
        output = compiled(fn, **options)(*arguments)
    if training:
        output.backward()
    return [output.detach(), *(value.grad for value in arguments)], seen


def missed(**options):
    values, seen = look_up(**options)
    assert seen.items() >= MISS.items()
    return values


def hit(**options):
    values, seen = look_up(**options)
    assert seen == HIT
    return values


def saved():
    artifacts = torch.compiler.save_cache_artifacts()
    assert artifacts is not None
    return artifacts


def keys(info):
    """Return which of the entries that PyTorch lists are ours."""
    return [key for key in info.aot_autograd_artifacts if key.startswith("regional-")]


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_a_fresh_folder_hits_what_was_loaded(elsewhere, training, dynamic):
    options = {"fn": trained if training else program, "training": training, "dynamic": dynamic}
    cold = missed(**options)
    content, info = saved()
    assert len(keys(info)) == 1
    elsewhere()
    loaded = torch.compiler.load_cache_artifacts(content)
    assert keys(loaded) == keys(info)
    warm = hit(**options)
    assert all(a is b or torch.equal(a, b) for a, b in zip(cold, warm, strict=True))


def test_an_entry_is_recorded_once_however_often_it_is_used():
    missed()
    hit()
    hit()
    _, info = saved()
    assert len(keys(info)) == 1


def test_two_entries_of_one_key_both_arrive(elsewhere):
    def first_five(x, w):
        with region("r"):
            h = x @ w
        g = h[:5].reshape(-1)
        return g @ g

    for size in (4, 8):
        missed(fn=first_five, size=size, dynamic=True)
    content, info = saved()
    assert len(keys(info)) == 2
    elsewhere()
    torch.compiler.load_cache_artifacts(content)
    for size in (3, 9):
        hit(fn=first_five, size=size, dynamic=True)


def test_pytorchs_own_artifacts_travel_along(elsewhere):
    missed()
    torch._dynamo.reset()
    torch.compile(torch.sin)(torch.ones(3))
    content, info = saved()
    assert info.inductor_artifacts
    elsewhere()
    assert torch.compiler.load_cache_artifacts(content).inductor_artifacts == info.inductor_artifacts
    hit()


@pytest.mark.parametrize("how", ["option", "torch.compiler"])
def test_a_cache_that_is_off_records_nothing(how):
    with torch.compiler.config.patch(force_disable_caches=how == "torch.compiler"):
        look_up(options={"outer_cache": how != "option"})
    assert torch.compiler.save_cache_artifacts() is None


def test_caches_that_are_off_use_nothing_that_was_loaded(elsewhere):
    missed()
    content, _ = saved()
    elsewhere()
    torch.compiler.load_cache_artifacts(content)
    with torch.compiler.config.patch(force_disable_caches=True):
        _, seen = look_up()
    assert (seen["hit"], seen["regions"]) == (0, 1)
    hit()


def resealed(**changes):
    """Return a change of an entry to one that was made somewhere else."""

    def change(sealed):
        elsewhere = type(this_machine())(**(this_machine().as_dict() | changes))
        header, payload = container._opened(sealed, "")
        return container.seal(payload, kind=header["kind"], key=header["key"], machine=elsewhere)

    return change


def other_key(sealed):
    return container.seal(container.unseal(sealed, kind=KIND), kind=KIND, key="abc")


DAMAGE = {
    "truncated": (lambda sealed: sealed[:-10], "is truncated"),
    "a bit flipped": (lambda sealed: next(flipped(sealed, range(8000, 8001)))[1], "is corrupted"),
    "nothing": (lambda sealed: b"", "is empty"),
    "something else": (lambda sealed: b"not an entry", "is not an artifact"),
    "another torch": (resealed(torch="2.0.0"), "was compiled by torch 2.0.0"),
    "another processor": (resealed(cpu="abacus"), "was compiled on another machine: cpu 'abacus' there"),
    "another key": (other_key, "belongs to the key abc"),
}


def rewritten(content, change):
    """Return portable artifacts with our entries changed, and PyTorch's checksum over all of them right."""
    artifacts = CacheArtifactManager.deserialize(content)
    with CacheArtifactManager.with_fresh_cache():
        for kind, found in artifacts.items():
            for artifact in found:
                ours = artifact.key.startswith("regional-")
                CacheArtifactManager.record_artifact(
                    kind, artifact.key, change(artifact.content) if ours else artifact.content
                )
        return saved()[0]


@pytest.mark.parametrize("name", DAMAGE)
def test_an_invalid_entry_is_refused_and_compiled_again(elsewhere, name):
    change, message = DAMAGE[name]
    cold = missed()
    content, _ = saved()
    elsewhere()
    torch.compiler.load_cache_artifacts(rewritten(content, change))
    with pytest.warns(CacheWarning, match=message) as said:
        again = missed()
    assert len([warning for warning in said if issubclass(warning.category, CacheWarning)]) == 1
    assert torch.equal(cold[0], again[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hit()


def test_the_whole_damaged_is_refused_by_pytorch(elsewhere, caplog):
    missed()
    content, _ = saved()
    elsewhere()
    assert torch.compiler.load_cache_artifacts(content[:-1]) is None
    missed()


def test_a_folder_that_others_can_write_to_is_not_read(elsewhere):
    missed()
    content, _ = saved()
    elsewhere()
    torch.compiler.load_cache_artifacts(content)
    (folder,) = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).glob("aotautograd/regional-*")
    folder.chmod(0o777)
    with pytest.warns(CacheWarning, match="can be written to by everybody"):
        missed()


def test_the_entries_are_where_the_next_lookup_finds_them(elsewhere):
    """A hit leaves them there: no second copy is made."""
    missed()
    content, _ = saved()
    elsewhere()
    torch.compiler.load_cache_artifacts(content)
    hit()
    assert entries() == []


COLD = """
import sys, torch
from pytest_regional import region

def program(x, w):
    with region("mlp"):
        h = x @ w.T
    return h + x

if sys.argv[1] == "save":
    torch.compile(program, backend="regional")(torch.ones(4, 4), torch.ones(4, 4))
    open(sys.argv[2], "wb").write(torch.compiler.save_cache_artifacts()[0])
else:
    from pytest_regional.testing import regional as harness
    from torch._dynamo.utils import counters
    print(torch.compile(program, backend="regional")(torch.ones(4, 4), torch.ones(4, 4)).sum().item())
    print(counters["aot_autograd"]["autograd_cache_hit"], counters["aot_autograd"]["autograd_cache_miss"])
"""

LOAD = """
import sys, torch
info = torch.compiler.load_cache_artifacts(open(sys.argv[2], "rb").read())
assert not any(name.startswith("pytest_regional") for name in sys.modules)
print(len(info.aot_autograd_artifacts))
"""


@pytest.mark.slow("starts processes that import torch", fast="test_a_fresh_folder_hits_what_was_loaded")
def test_a_process_with_only_torch_loads_them(tmp_path):
    def run(script, word, folder):
        done = subprocess.run(
            [sys.executable, "-c", script, word, str(tmp_path / "artifacts")],
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / folder)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    # A script given as an argument has no source that Dynamo could read.
    script = tmp_path / "program.py"
    script.write_text(COLD)
    start = f"import runpy, sys; runpy.run_path({str(script)!r}, run_name='__main__')"
    run(start, "save", "first")
    assert run(LOAD, "load", "second") == ["1"]
    assert run(start, "use", "second") == ["80.0", "1", "0"]
