"""The isolation isolates: fresh caches, cleared state, everything put back and named."""

from __future__ import annotations

import _thread
import os
import platform
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import numpy
import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._inductor import codecache, cpu_vec_isa
from torch._inductor.cpp_builder import CppBuilder
from torch.overrides import TorchFunctionMode

from pytest_regional import BackendLeakError, BackendSpec
from pytest_regional._torch import config, dynamo
from pytest_regional.harness.isolation import Snapshot, cache_folder, clear_folder
from pytest_regional.testing import regional

from .programs import pair, product


def test_every_harness_starts_cold():
    for _ in range(2):
        with regional("torch") as r, r.expect(region_compiles=1, region_cache_hits=0):
            r.compile(product)(*pair(r))


def test_a_shared_folder_is_what_makes_the_second_one_warm(tmp_path):
    """The twin of the test above: without fresh folders there would be a hit."""
    hits = []
    for _ in range(2):
        with regional("torch", cache_dir=tmp_path) as r:
            r.compile(product)(*pair(r))
            hits.append(r.counters.region_cache_hits)
    assert hits == [0, 1]


def test_caches_stay_in_the_folder(tmp_path):
    folder = tmp_path / "own"
    before = dict(os.environ)
    with regional("torch", cache_dir=folder) as r:
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(folder)
        assert os.environ["TRITON_CACHE_DIR"].startswith(str(folder))
        r.compile(product)(*pair(r))
        assert any(path.is_file() for path in folder.rglob("*"))
    assert dict(os.environ) == before
    assert folder.is_dir(), "a folder that the harness did not create is never deleted"


def test_the_processor_is_checked_once_for_all_folders(tmp_path, monkeypatch):
    monkeypatch.setattr(codecache, "_HEADER_DIR", str(tmp_path / "shared" / "headers"))
    built, build = [], CppBuilder.build
    monkeypatch.setattr(CppBuilder, "build", lambda builder: (built.append(builder), build(builder)))
    isa = cpu_vec_isa.VecAVX2() if platform.machine() == "x86_64" else cpu_vec_isa.VecNEON()

    def check(folder):
        with cache_folder(tmp_path / folder):
            return isa.check_build('extern "C" int one() { return 1; }')

    with regional("aot_eager"):
        assert check("first")
        assert check("second")
    assert len(built) == 1
    assert not [path for path in tmp_path.rglob("*.so") if "shared" not in path.parts]


def test_our_own_directory_is_deleted():
    with regional("torch") as r:
        r.compile(product)(*pair(r))
        folder = r.folder
        assert folder.is_dir()
    assert not folder.exists()


def test_draws_are_the_same_in_every_harness_of_one_seed():
    draws = []
    for seed in (1, 1, 2):
        with regional("aot_eager", seed=seed, expects_regions=False) as r:
            draws.append((r.randn(3).tolist(), random.random(), float(numpy.random.rand())))
    assert draws[0] == draws[1]
    assert all(a != b for a, b in zip(draws[0], draws[2], strict=True))


def test_the_callers_generators_are_left_as_found():
    before = torch.get_rng_state(), random.getstate()
    with regional("aot_eager", expects_regions=False) as r:
        r.randn(3), random.random()
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


def test_compile_counters_of_others_are_cleared():
    counters = torch._dynamo.utils.counters
    counters["aot_autograd"]["autograd_cache_hit"] += 5
    with regional("aot_eager", expects_regions=False):
        assert counters["aot_autograd"]["autograd_cache_hit"] == 0


def set_config():
    torch._inductor.config.max_autotune = True


def set_nested_config():
    torch._inductor.config.triton.cudagraphs = True


def grow_config():
    torch._dynamo.config.reorderable_logging_functions.add(print)


def set_functorch():
    torch._functorch.config.debug_assert = not torch._functorch.config.debug_assert


def set_environment():
    os.environ["SOME_SETTING"] = "1"


def remove_environment():
    del os.environ["REGIONAL_TEST_VARIABLE"]


def set_default_dtype():
    torch.set_default_dtype(torch.float64)


def set_default_device():
    torch.set_default_device("meta")


def set_grad_mode():
    torch.set_grad_enabled(False)


def set_precision():
    torch.set_float32_matmul_precision("high")


def set_deterministic():
    torch.use_deterministic_algorithms(True)


def set_flushing():
    torch.set_flush_denormal(True)


def change_folder():
    os.chdir("/")


def set_stance():
    torch.compiler.set_stance("force_eager")


LEAKS = {
    change_folder: "working directory",
    set_stance: "compiler stance",
    set_config: "torch._inductor.config.max_autotune",
    set_nested_config: "torch._inductor.config.triton.cudagraphs",
    grow_config: "torch._dynamo.config.reorderable_logging_functions",
    set_functorch: "torch._functorch.config.debug_assert",
    set_environment: "environment variable SOME_SETTING",
    remove_environment: "environment variable REGIONAL_TEST_VARIABLE",
    set_default_dtype: "default dtype",
    set_default_device: "default device",
    set_grad_mode: "grad mode",
    set_precision: "float32 matmul precision",
    set_flushing: "flushing of subnormal numbers",
    # PyTorch itself makes Inductor follow.
    set_deterministic: "torch._inductor.config.deterministic, deterministic algorithms",
}


@pytest.mark.parametrize("leak", LEAKS, ids=lambda leak: leak.__name__)
def test_remaining_changes_are_restored_and_reported(leak, monkeypatch):
    monkeypatch.setenv("REGIONAL_TEST_VARIABLE", "here")
    before = Snapshot.take()
    with regional("aot_eager", expects_regions=False) as r:
        leak()
    assert ", ".join(found.name for found in r.leaks) == LEAKS[leak]
    assert before.leaks() == ()


def test_a_thread_that_is_left_running_is_named():
    go_on = threading.Event()
    thread = threading.Thread(target=go_on.wait, name="mine")
    ends_in_time = threading.Thread(target=time.sleep, args=(0.05,), name="short")
    with regional("aot_eager", expects_regions=False) as r:
        thread.start()
        ends_in_time.start()
    assert [(leak.name, leak.restored) for leak in r.leaks] == [("thread mine", False)]
    go_on.set()
    thread.join()


def test_threads_that_python_did_not_start_are_no_leak():
    """On a GPU autograd runs hooks in such threads; Python refuses to wait for one."""
    known, go_on, over = threading.Event(), threading.Event(), threading.Event()

    def foreign():
        threading.current_thread()  # from here on Python lists it
        known.set()
        go_on.wait()
        over.set()

    with regional("aot_eager", expects_regions=False) as r:
        _thread.start_new_thread(foreign, ())
        known.wait()
    assert any(isinstance(thread, threading._DummyThread) for thread in threading.enumerate())
    assert r.leaks == ()
    go_on.set()
    over.wait()


def test_the_assembler_that_inductor_names_once_is_no_leak(monkeypatch):
    monkeypatch.delenv("TRITON_PTXAS_PATH", raising=False)
    with regional("aot_eager", expects_regions=False) as r:
        os.environ["TRITON_PTXAS_PATH"] = "ptxas"
    assert r.leaks == ()
    assert os.environ["TRITON_PTXAS_PATH"] == "ptxas"


def test_threads_of_pools_are_no_leak():
    with ThreadPoolExecutor(1) as pool:
        with regional("aot_eager", expects_regions=False) as r:
            pool.submit(int).result()
        assert r.leaks == ()


def test_nothing_changed_is_no_leak():
    with regional("torch") as r:
        r.compile(product)(*pair(r, requires_grad=True)).sum().backward()
    assert r.leaks == ()


def test_changes_of_a_failing_block_are_restored_too():
    with pytest.raises(KeyError), regional("aot_eager") as r:
        set_default_dtype()
        raise KeyError
    assert torch.get_default_dtype() is torch.float32
    assert [leak.name for leak in r.leaks] == ["default dtype"]


def test_without_isolation_the_callers_caches_are_used(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    dynamo.reset_dynamo()
    with regional("torch", isolate=False) as r:
        r.compile(product)(*pair(r))
    assert any(path.is_file() for path in tmp_path.rglob("*"))
    assert r.leaks == ()


def test_restart_forgets_memory_and_keeps_disk():
    with regional("torch") as r:
        x = pair(r)
        r.compile(product)(*x)
        with r.expect(graphs=0):
            r.compile(product)(*x)
        r.restart()
        with r.expect(graphs=1, region_cache_hits=1, region_compiles=0):
            r.compile(product)(*x)


def test_reset_forgets_disk_as_well():
    with regional("torch") as r:
        x = pair(r)
        r.compile(product)(*x)
        r._reset()
        with r.expect(graphs=1, region_cache_hits=0, region_compiles=1):
            r.compile(product)(*x)


@pytest.mark.parametrize("name", ["TORCHINDUCTOR_REDIS_HOST", "TORCHINDUCTOR_REDIS_URL"])
def test_a_cache_server_is_left_alone(name, monkeypatch):
    monkeypatch.setenv(name, "redis://cache.example")
    with regional(expects_regions=False):
        assert name not in os.environ
        monkeypatch.setenv(name, "mine")  # what a test sets itself counts
        assert os.environ[name] == "mine"
    assert os.environ[name] == "redis://cache.example"
    with regional(expects_regions=False, shared_cache=True):
        assert os.environ[name] == "redis://cache.example"


def test_settings_that_ask_for_a_cache_server():
    with torch._inductor.config.patch(fx_graph_remote_cache=True):
        with regional(expects_regions=False):
            assert torch._inductor.config.fx_graph_remote_cache is False
        assert torch._inductor.config.fx_graph_remote_cache is True


def test_a_precision_that_a_test_restored_leaves_no_trace():
    with regional(expects_regions=False) as harness:
        torch.set_float32_matmul_precision("medium")
        torch.set_float32_matmul_precision("highest")
        assert torch.backends.mkldnn.matmul.fp32_precision == "ieee"
    assert torch.backends.mkldnn.matmul.fp32_precision == "none"
    assert harness.leaks == ()


def test_a_precision_that_a_test_left_is_restored_and_reported():
    with regional(expects_regions=False) as harness:
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    assert torch.backends.mkldnn.matmul.fp32_precision == "none"
    assert [leak.name for leak in harness.leaks] == ["float32 matmul precision"]


def test_a_restart_forgets_warnings():
    from pytest_regional.reference import CacheWarning
    from pytest_regional.reference.caching.container import warn_once

    with regional(expects_regions=False) as harness:
        for _ in range(2):
            with pytest.warns(CacheWarning, match="said once"):
                warn_once("said once")
            harness.restart()


def test_a_cleared_folder_may_keep_compiled_kernels(tmp_path):
    for name in ("ab/kernel.so", "fxgraph/entry", "aotautograd/entry", "locks/one", "precompiled_headers/header"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    clear_folder(tmp_path, keep_code=True)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["ab", "locks", "precompiled_headers"]
    clear_folder(tmp_path)
    assert not list(tmp_path.iterdir())


def leaves_settings(gm, inputs):
    torch._inductor.config.max_autotune = True
    torch.set_grad_enabled(not torch.is_grad_enabled())
    os.environ["LEFT_BY_A_BACKEND"] = "a secret"
    return gm.forward


def test_a_backend_that_leaves_settings_changed_fails_the_test():
    message = r"'faulty' left 3 settings changed .*\n(.*\n)*.*max_autotune: False -> True\n.*LEFT_BY_A_BACKEND: set\n"
    with pytest.raises(BackendLeakError, match=message):
        with regional(BackendSpec("faulty", lambda: leaves_settings), expects_regions=False) as r:
            for _ in range(2):
                torch.compile(torch.sin, backend=r.dynamo_backend)(torch.ones(2))
    assert {leak.name for leak in r.leaks} >= {"torch._inductor.config.max_autotune"}


def test_leaks_of_a_backend_that_compiles_the_backward():
    def leaves_modes(gm, inputs):
        torch._C._push_on_torch_function_stack(PassesAll())
        return gm.forward

    backend = aot_autograd(fw_compiler=lambda gm, inputs: gm.forward, bw_compiler=leaves_modes)
    with pytest.raises(BackendLeakError, match=r"left 1 setting changed .*\n  function modes: "):
        with regional(BackendSpec("faulty", lambda: backend), expects_regions=False) as r:
            torch.compile(torch.sin, backend=r.dynamo_backend)(torch.ones(2, requires_grad=True)).sum().backward()
    assert torch._C._len_torch_function_stack() == 0


class PassesAll(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_leaks_of_another_backend_are_the_tests():
    with regional("aot_eager", expects_regions=False) as r:
        torch.compile(torch.sin, backend=leaves_settings)(torch.ones(2))
    assert "torch._inductor.config.max_autotune" in {leak.name for leak in r.leaks}


def test_leaks_of_a_test_are_not_the_backends():
    with regional("aot_eager", expects_regions=False) as r:
        set_config()
        r.compile(torch.sin)(torch.ones(2, requires_grad=True)).sum().backward()
        set_precision()
    assert {leak.name for leak in r.leaks} == {"torch._inductor.config.max_autotune", "float32 matmul precision"}


def test_generated_code_that_is_loaded_again_is_no_leak():
    name = f"{config.GENERATED_MODULES}some_kernel"
    sys.modules[name] = ModuleType(name)
    with regional("aot_eager", expects_regions=False) as r:
        sys.modules[name] = ModuleType(name)
    assert r.leaks == ()
    del sys.modules[name]


def test_a_kernel_that_torch_registers_when_it_is_first_needed_is_no_leak():
    """As the first ``vmap`` of a process does; torch does it once, so that it must not be undone."""
    source = compile(
        "late = library.Library('aten', 'IMPL'); late.impl('erfinv', lambda x: x, 'Sparse')",
        f"{os.path.dirname(torch.__file__)}/late.py",
        "exec",
    )
    namespace = {"library": torch.library}
    with regional("aot_eager", expects_regions=False):
        """Import what is imported late: kernels of a test that imports are not looked at."""
    with regional("aot_eager", expects_regions=False) as r:
        exec(source, namespace)
    assert r.leaks == ()
    assert namespace["late"]._op_impls
    namespace["late"]._destroy()
