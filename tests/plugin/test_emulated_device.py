"""``--regional-device=cuda-emulated``: what a user sees."""

from __future__ import annotations

import pickle
import warnings

import pytest

from pytest_regional._torch import inductor
from pytest_regional.harness import _child
from pytest_regional.harness.devices import emulated
from pytest_regional.harness.devices.device import device_under_test
from pytest_regional.harness.options import CompileOptions
from pytest_regional.harness.process import job_for

PARITY = """
    @pytest.mark.regional_compile
    def test_it(regional):
        regional.assert_parity(program, regional.randn(4, 8), regional.randn(8, 8))

    def program(x, w):
        from torch.fx.traceback import annotate
        with annotate({"compile_with_inductor": {}}):
            h = (x @ w).relu() + 1
        return h.sin()
"""

REFUSED = """
    @pytest.mark.regional_compile(inductor_configs={"triton.cudagraphs": True})
    def test_it(regional):
        regional.run(block, *pair(regional))
"""

GPU = ("--regional-backend=reference", "--regional-device=cuda-emulated")


def test_reports_say_that_the_gpu_is_emulated(downstream):
    result = downstream(PARITY, *GPU)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*device cuda-emulated;*", "*reference (cuda-emulated)*"])


def test_two_gpus_side_by_side(downstream):
    both = "--regional-device=cuda-emulated,cuda-emulated:a100"
    result = downstream(PARITY, "--regional-backend=reference", both, "-v")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*test_it?cuda-emulated?*PASSED*", "*test_it?cuda-emulated:a100?*"])


def test_an_unknown_gpu_is_a_usage_error(downstream):
    result = downstream(PARITY, "--regional-backend=reference", "--regional-device=cuda-emulated:h20")
    result.stderr.fnmatch_lines(["*unknown device 'cuda-emulated:h20'. Did you mean 'cuda-emulated:h200'*"])


def test_unsupported_features_are_a_skip_that_names_them(downstream):
    result = downstream(REFUSED, *GPU)
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*test_it.py:*cuda-emulated cannot run it: CUDA graphs (triton.cudagraphs)*"])


def test_a_test_that_swallows_the_refusal_is_no_pass(downstream):
    source = REFUSED.replace("regional.run(", "with pytest.raises(Exception): regional.run(")
    downstream(source, *GPU).assert_outcomes(skipped=1)


def test_its_own_failure_next_to_a_refusal_is_a_failure(downstream):
    swallowed = REFUSED.replace("regional.run(", "with pytest.raises(Exception): regional.run(")
    result = downstream(swallowed + "        assert 1 + 1 == 3\n", *GPU)
    result.assert_outcomes(failed=1)


def refused(regional):
    regional.run(lambda x: x.sin(), regional.randn(4))


def test_what_a_new_process_answers_where_a_feature_is_unsupported(tmp_path):
    options = CompileOptions(inductor_configs={"triton.cudagraphs": True})
    job = job_for(refused, (), {"spec": "inductor", "device": "cuda-emulated", "options": options})
    (tmp_path / "request").write_bytes(pickle.dumps(job))
    answer = _child._answer(tmp_path / "request")
    assert answer["kind"] == "skip", answer
    assert answer["text"].startswith("cuda-emulated cannot run it: CUDA graphs (triton.cudagraphs)")


@pytest.mark.slow(
    "starts processes that import torch", fast="test_what_a_new_process_answers_where_a_feature_is_unsupported"
)
def test_limits_of_another_process_are_a_skip_too(downstream):
    source = """
        @pytest.mark.regional_compile(inductor_configs={"triton.cudagraphs": True}, expects_regions=False)
        def test_it(regional):
            regional.in_new_process(there)

        def there(regional):
            regional.run(block, *pair(regional))
    """
    result = downstream(source, "--regional-backend=reference", "--regional-device=cuda-emulated:a100")
    result.assert_outcomes(skipped=1)
    told = "SKIPPED*skipped in the new process: cuda-emulated:a100 cannot run it: CUDA graphs*"
    result.stdout.fnmatch_lines([told])


def test_a_fault_in_a_kernel_fails_the_test(downstream):
    source = """
        @pytest.mark.regional_compile
        def test_it(regional):
            table, index = regional.randn(4, 8), torch.tensor([1, 4])
            regional.run(look_up, table, index)

        def look_up(table, index):
            from torch.fx.traceback import annotate
            with annotate({"compile_with_inductor": {}}):
                return table[index] + 1
    """
    result = downstream(source, *GPU)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*KernelAssertionError*index out of bounds*"])


def test_warnings_of_imports_are_no_errors(monkeypatch):
    def warn(*of):
        warnings.warn("of torch's own doings", stacklevel=1)

    monkeypatch.setattr(inductor, "private_module", warn)
    monkeypatch.setattr(emulated, "_problem_of_self_test", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        inductor.import_compilers.__wrapped__()
        emulated.check_emulation(device_under_test("cuda-emulated"))


@pytest.mark.slow("checks the emulator in a new process", fast="test_warnings_of_imports_are_no_errors")
def test_warnings_as_errors(repository, pytester):
    """In a process that has imported nothing yet: torch warns of its own doings when its compilers are imported."""
    repository(PARITY)
    pytester.runpytest_subprocess("-p", "no:randomly", *GPU, "-W", "error").assert_outcomes(passed=1)


def test_the_wrong_case_is_an_error_with_a_hint(downstream):
    result = downstream(PARITY, "--regional-backend=reference", "--regional-device=cuda-emulated:A100")
    result.stderr.fnmatch_lines(["*Did you mean 'cuda-emulated:a100'*"])
