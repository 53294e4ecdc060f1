"""``in_new_process``: a fresh interpreter, the same cache folder; a skip there is a skip here."""

from __future__ import annotations

import atexit
import os
import threading
import time
from pathlib import Path

import pytest

from pytest_regional import NewProcessError, VacuousTestError
from pytest_regional.testing import regional

from .programs import pair, product


def compile_product(regional, size):
    regional.compile(product)(*pair(regional, size))
    return size, os.getpid()


def add(a, b):
    return a + b


def fail():
    print("printed before the failure")
    raise LookupError("nothing there")


def skip():
    pytest.skip("no such device there")


def sleep():
    time.sleep(60)


def die():
    os._exit(7)


def return_a_function():
    return lambda: None


def quiet():
    return regional("aot_eager", expects_regions=False)


@pytest.mark.usefixtures("real_interpreter")
def test_an_interpreter_of_its_own():
    with regional("torch", expects_regions=False) as r:
        there = r.in_new_process(compile_product, 4)
    assert there.value[0] == 4
    assert there.value[1] != os.getpid()
    assert (there.counters.region_compiles, there.counters.region_cache_hits) == (1, 0)


def test_cold_then_warm():
    with regional("torch", expects_regions=False) as r:
        cold = r.in_new_process(compile_product, 4)
        warm = r.in_new_process(compile_product, 4)
    assert cold.value[0] == warm.value[0] == 4
    assert len({cold.value[1], warm.value[1], os.getpid()}) == 3
    assert (cold.counters.region_compiles, cold.counters.region_cache_hits) == (1, 0)
    assert (warm.counters.region_compiles, warm.counters.region_cache_hits) == (0, 1)


def test_a_function_without_harness_gets_only_its_arguments():
    with quiet() as r:
        value, counters = r.in_new_process(add, 2, 3)
    assert value == 5
    assert counters.graphs == 0


def test_a_failure_there_is_a_failure_here_with_traceback_and_output():
    with quiet() as r, pytest.raises(NewProcessError) as caught:
        r.in_new_process(fail)
    assert "LookupError: nothing there" in str(caught.value)
    assert "printed before the failure" in str(caught.value)


def leave_work_for_the_end(folder):
    atexit.register(Path(folder, "at the end").touch)

    def slowly():
        time.sleep(0.5)
        Path(folder, "of a thread").touch()

    threading.Thread(target=slowly).start()


def test_what_is_left_for_the_end_of_the_process_is_done(tmp_path):
    with quiet() as r:
        r.in_new_process(leave_work_for_the_end, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"at the end", "of a thread"}


def test_a_skip_there_is_a_skip_here():
    with quiet() as r, pytest.raises(pytest.skip.Exception, match="no such device there"):
        r.in_new_process(skip)


@pytest.mark.usefixtures("real_interpreter")
def test_a_hang_is_killed():
    with quiet() as r, pytest.raises(NewProcessError, match="did not answer within"):
        r.in_new_process(sleep, timeout=1)


def test_a_death_is_reported():
    with quiet() as r, pytest.raises(NewProcessError, match="without an answer\nexit status 7"):
        r.in_new_process(die)


def test_a_value_that_cannot_travel_is_reported():
    with quiet() as r, pytest.raises(NewProcessError, match="cannot be pickled"):
        r.in_new_process(return_a_function)


def test_local_functions_are_refused():
    with quiet() as r, pytest.raises(TypeError, match="top of a module"):
        r.in_new_process(lambda: 3)


def test_arguments_that_cannot_travel_are_refused():
    with quiet() as r, pytest.raises(TypeError, match="picklable"):
        r.in_new_process(add, lambda: 3, 4)


def test_what_a_process_compiled_this_test_compiled():
    with regional() as r:
        r.in_new_process(compile_product, 4)


def test_a_process_that_compiles_nothing_leaves_the_test_vacuous():
    with pytest.raises(VacuousTestError), regional() as r:
        r.in_new_process(add, 1, 2)
