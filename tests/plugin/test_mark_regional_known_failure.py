"""The ``regional_known_failure`` mark."""

from __future__ import annotations

import pytest


def run(downstream, mark, body="assert False", backend="aot_eager", device="cpu"):
    return downstream(
        f"""
        @pytest.mark.regional_compile(expects_regions=False)
        @pytest.mark.regional_known_failure({mark})
        def test_it(regional):
            {body}
        """,
        f"--regional-backend={backend}",
        f"--regional-device={device}",
    )


def test_a_known_failure_is_expected(downstream):
    result = run(downstream, "'aot_eager', reason='it is broken: issue 7'")
    result.assert_outcomes(xfailed=1)
    result.stdout.fnmatch_lines(["it *1 known failure*", "XFAIL*it is broken: issue 7*"])


def test_a_mended_one_fails_until_the_mark_goes(downstream):
    result = run(downstream, "'aot_eager', reason='was broken'", body="pass")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*XPASS(strict)*was broken*"])


def test_strict_may_be_turned_off(downstream):
    run(downstream, "'aot_eager', reason='flickers', strict=False", body="pass").assert_outcomes(xpassed=1)


def test_another_backend_is_not_meant(downstream):
    run(downstream, "'torch', reason='r'").assert_outcomes(failed=1)


@pytest.mark.parametrize(
    ("specifier", "outcome"), [(">=2.11", "xfailed"), ("<2.0", "failed"), (">=2.11,<9", "xfailed")]
)
def test_the_torch_range(downstream, specifier, outcome):
    run(downstream, f"'aot_eager', reason='r', torch='{specifier}'").assert_outcomes(**{outcome: 1})


@pytest.mark.parametrize(("kind", "outcome"), [("cpu", "xfailed"), ("cuda", "failed"), ("cuda-emulated", "failed")])
@pytest.mark.parametrize("asked", ["cpu", "auto"])
def test_the_kind_of_device(downstream, kind, outcome, asked, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    mark = f"'aot_eager', reason='r', device='{kind}'"
    run(downstream, mark, device=asked).assert_outcomes(**{outcome: 1})


def test_a_described_gpu_is_of_the_emulated_kind(downstream):
    run(downstream, "'aot_eager', reason='r', device='cuda-emulated'", device="cuda-emulated:a100").assert_outcomes(
        xfailed=1
    )


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ("'aot_eager'", "*needs a backend and a reason*"),
        ("'aot_eager', reason=' '", "*reason must say what fails*"),
        ("'aot_eger', reason='r'", "*unknown backend 'aot_eger'. Did you mean 'aot_eager'*"),
        ("'aot_eager', reason='r', torc='>=2'", "*unknown keyword 'torc'. Did you mean 'torch'*"),
        ("'aot_eager', reason='r', torch='new'", "*'new' is no version specifier*"),
        ("'aot_eager', reason='r', torch=2.13", "*torch=2.13 is no version specifier*"),
        ("'aot_eager', reason='r', device='cudda'", "*unknown kind of device 'cudda'. Did you mean 'cuda'*"),
        ("'aot_eager', reason='r', device='gpu'", "*unknown kind of device 'gpu'. Did you mean 'cuda'*"),
        ("'aot_eager', reason='r', strict='no'", "*strict must be True or False, not 'no'*"),
        ("('aot_eager', 'torch'), reason='r'", "*backend must be the name of one backend*"),
        ("'aot_eager', reason=3", "*reason must say what fails*"),
    ],
)
def test_a_wrong_mark_is_a_usage_error(downstream, mark, message):
    result = run(downstream, mark)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])
