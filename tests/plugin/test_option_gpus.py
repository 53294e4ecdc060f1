"""``regional_gpus``: a GPU for each worker, of those that the caller lets the run see.

That workers have it in their environment before torch is imported stands in ``test_xdist.py``.
"""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from pytest_regional.plugin.workers import PLACE_VARIABLE, ReportingErrors, WorkerHooks, for_worker


def seen(worker, visible, folder):
    environment = {"PYTEST_XDIST_WORKER": worker, "CUDA_VISIBLE_DEVICES": visible}
    return for_worker({name: value for name, value in environment.items() if value is not None}, folder)


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [
        ("5,3", ["5", "3", "5", "3"]),
        (" 0, 1 ,2", ["0", "1", "2", "0"]),
        ("GPU-8932f937,MIG-41b6a0e2", ["GPU-8932f937", "MIG-41b6a0e2", "GPU-8932f937", "MIG-41b6a0e2"]),
        ("4,7,-1,2", ["4", "7", "4", "7"]),
        ("7", [None] * 4),
        ("", [None] * 4),
        ("-1", [None] * 4),
        (None, [None] * 4),
    ],
)
def test_each_worker_in_turn(tmp_path, visible, gpus):
    assert [seen(f"gw{number}", visible, tmp_path) for number in range(4)] == gpus


def test_where_nothing_was_chosen_device_files_are_counted(tmp_path):
    for name in ("nvidia0", "nvidia1", "nvidia12", "nvidiactl", "nvidia-uvm", "nvidia-caps"):
        (tmp_path / name).touch()
    assert [seen(f"gw{number}", None, tmp_path) for number in range(4)] == ["0", "1", "2", "0"]


@pytest.mark.parametrize("worker", ["", "main"])
def test_without_workers_nothing_changes(tmp_path, worker):
    assert seen(worker, "0,1", tmp_path) is None


def test_a_worker_that_replaces_another_has_its_place(monkeypatch, tmp_path):
    """And not that of a living one, which the number in its name would give it."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,3")
    monkeypatch.setenv(PLACE_VARIABLE, "")
    errors = ReportingErrors()
    hooks = WorkerHooks(SimpleNamespace(config=None, scratch_dir=tmp_path, errors=errors, fuzz_seed=7))

    def run_there(code):
        exec(code)
        return SimpleNamespace(waitclose=lambda timeout: None)

    def place_of(node):
        hooks.pytest_configure_node(node)
        assert node.workerinput == {"regional_fuzz_seed": 7}
        return os.environ[PLACE_VARIABLE]

    gateways = [SimpleNamespace(id=f"gw{number}", remote_exec=run_there) for number in range(4)]
    first, second, third, fourth = (SimpleNamespace(gateway=gateway, workerinput={}) for gateway in gateways)
    assert (place_of(first), place_of(second)) == ("0", "1")
    hooks.pytest_testnodedown(first, "Not properly terminated")
    assert place_of(third) == "0"
    hooks.pytest_testnodedown(second, "Not properly terminated")
    assert place_of(fourth) == "1"
    assert (hooks.lost, errors.taken()) == (2, [])


SOURCE = """
    import os

    @pytest.mark.regional_compile(expects_regions=False)
    def test_gpus():
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "5,3"
"""


@pytest.mark.parametrize(("how", "passed"), [("ini", 1), ("default", 0)])
def test_all_gpus(downstream, pytester, monkeypatch, how, passed):
    """In a process that takes itself for a worker."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,3")
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw1")
    pytester.makeini("[pytest]\n" + ("regional_gpus = all\n" if how == "ini" else ""))
    result = downstream(SOURCE, "--regional-backend=aot_eager", "--regional-device=cpu")
    result.assert_outcomes(passed=passed, failed=1 - passed)


@pytest.mark.parametrize("backend", [[], ["--regional-backend=aot_eager"]])
def test_another_word(downstream, backend):
    result = downstream(SOURCE, "-oregional_gpus=two", *backend)
    result.stderr.fnmatch_lines(["*regional_gpus=two: expected one or all"])
