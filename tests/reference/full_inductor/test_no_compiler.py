"""What was compiled whole and stored is loaded without the C++ compiler: the libraries travel with it."""

import os
import shutil
from pathlib import Path

import pytest
import torch

from pytest_regional.reference import FullInductor, pipeline
from pytest_regional.reference.caching.program import CodeFile, libraries_at_hand
from pytest_regional.reference.caching.store import default_folder
from tests.warm_process import run_script

LOADED = """
import os, torch, warnings

warnings.simplefilter("ignore")
os.environ["PATH"] = {path!r}
from pytest_regional.reference import pipeline
from tests.reference.full_inductor.test_no_compiler import Sine, compiled, inputs, step

model = Sine()
loaded = pipeline.load({what!r}, model) if {what!r} != "cache" else compiled(model, cache=True)
torch.save(step(loaded, model), {results!r})
"""


class Sine(torch.nn.Module):
    """One small kernel forward, one backward."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 4))

    def forward(self, x):
        return (x * self.weight).sin()


def inputs():
    return (torch.linspace(-2, 2, 12).view(3, 4),)


def compiled(model, **options):
    return pipeline.compile(model, inputs(), passes=[FullInductor()], **options)


def step(call, model):
    """Return output and gradient."""
    output = call(*inputs())
    output.sum().backward()
    return [output.detach(), model.weight.grad]


@pytest.fixture
def environment(tmp_path):
    """A new process's: an empty cache folder."""
    return {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "empty"), "PYTHONPATH": os.getcwd()}


@pytest.fixture(autouse=True)
def compiler(tmp_path):
    """A C++ compiler that notes each run."""
    real = shutil.which("g++")
    fake = tmp_path / "bin" / "g++"
    fake.parent.mkdir()
    fake.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/runs\nexec {real} "$@"\n')
    fake.chmod(0o755)
    return fake


def in_a_new_process(what, environment, tmp_path):
    """Return what the process computes, and the runs of the compiler in it, but those that ask for its version."""
    ended = start(what, environment, tmp_path)
    assert ended.returncode == 0, ended.stderr
    return torch.load(tmp_path / "results"), runs_in(tmp_path)


def start(what, environment, tmp_path):
    path = os.pathsep.join((str(tmp_path / "bin"), os.environ["PATH"]))
    script = tmp_path / "loaded.py"
    script.write_text(LOADED.format(path=path, what=str(what), results=str(tmp_path / "results")))
    return run_script(script, environment, timeout=240)


def runs_in(tmp_path):
    runs = tmp_path / "runs"
    lines = runs.read_text().splitlines() if runs.exists() else []
    return [line for line in lines if line not in ("--version", "-v")]


def check(found, expected):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.slow("starts processes that import torch", fast="test_an_entry_of_the_outer_cache")
def test_an_artifact_that_was_loaded_and_saved_again(environment, tmp_path):
    tmp_path.chmod(0o700)
    model = Sine()
    whole = compiled(model)
    whole.save(tmp_path / "first")
    pipeline.load(tmp_path / "first", Sine()).save(tmp_path / "again")
    found, runs = in_a_new_process(tmp_path / "again", environment, tmp_path)
    check(found, step(whole, model))
    assert runs == []
    assert list(Path(environment["TORCHINDUCTOR_CACHE_DIR"]).rglob("*.so"))


def test_an_entry_of_the_outer_cache(environment, tmp_path):
    """The entry alone; what Inductor keeps beside it is gone."""
    model = Sine()
    whole = compiled(model, cache=True)
    shutil.copytree(default_folder(), Path(environment["TORCHINDUCTOR_CACHE_DIR"]) / default_folder().name)
    found, runs = in_a_new_process("cache", environment, tmp_path)
    check(found, step(whole, model))
    assert runs == []


def test_the_noting_compiler_notes(environment, tmp_path, compiler):
    """Without an entry to load, the same process compiles; here with a compiler that notes it, and fails."""
    compiler.write_text(compiler.read_text().replace("exec ", "case $1 in -*v*) ;; *) exit 1 ;; esac\nexec "))
    start("cache", environment, tmp_path)
    assert runs_in(tmp_path)


def test_libraries_at_hand_nest():
    """A whole graph beside compiled regions: regions bring their own while the whole is loaded."""
    cache = torch._inductor.codecache.CppPythonBindingsCodeCache
    theirs = cache.load_async
    outer = {"path": CodeFile("path", b"", "key", "digest")}
    with libraries_at_hand(outer):
        patched = cache.load_async
        with libraries_at_hand({}):
            assert cache.load_async is not patched
        assert cache.load_async is patched
    assert cache.load_async == theirs
    assert "load_async" not in vars(cache)
