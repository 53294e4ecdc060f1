"""Signals that ask a process to end: the run ends as one does that is interrupted, with reports and without folders."""

from __future__ import annotations

import signal

import pytest

from .runs import Run, run

SIGNALS = ("SIGTERM", "SIGHUP", "SIGQUIT")

#: Read by workers too, which inherit the environment.
CONFTEST = 'import os\nos.environ.setdefault("MAIN", str(os.getpid()))\n'

TESTS = """
def send(name):
    os.kill(int(os.environ["MAIN"]), getattr(signal, name))
    time.sleep(60)

@marked
def test_before(regional):
    assert regional.randn(2).shape == (2,)

@pytest.fixture
def sends():
    yield
    if "{where}" == "teardown":
        send("{name}")

@marked
def test_it(sends, regional):
    {body}

@marked
def test_behind(regional):
    assert regional.randn(2).shape == (2,)
"""


def signalled(tmp_path, name: str, *options: str, where: str = "call", body: str = "", conftest: str = "") -> Run:
    (tmp_path / "conftest.py").write_text(CONFTEST + conftest)
    body = body or (f"send({name!r})" if where == "call" else "pass")
    return run(tmp_path, TESTS.format(name=name, where=where, body=body), *options)


def is_ended_by(run: Run, name: str) -> None:
    assert run.status == 128 + getattr(signal, name)
    run.lines.fnmatch_lines([f"*EndedBySignal: {name} while it ran *test_it.py::test_it*"])
    assert run.report["unfinished"].startswith(f"{name} ended it while it ran ")
    assert "test_it.py::test_it" in run.report["unfinished"]
    assert f"{name} ended it" in run.page
    status, said = run.merge()
    assert (status, "did not finish" in said) == (2, True)
    assert run.left == []
    assert "INTERNALERROR" not in run.printed


@pytest.mark.parametrize(("name", "options"), [("SIGHUP", ()), ("SIGTERM", ("-n1",))])
def test_ends_the_run_like_an_interrupt(tmp_path, name, options):
    run = signalled(tmp_path, name, *options)
    is_ended_by(run, name)
    if not options:
        assert run.ended == {"test_before": "passed", "test_it": "not finished"}
        assert {"test_before"} <= run.in_junit


def test_in_teardown(tmp_path):
    run = signalled(tmp_path, "SIGTERM", where="teardown")
    is_ended_by(run, "SIGTERM")
    assert "test_behind" not in run.ended


INTERRUPTED_WHILE = {
    "a test is reported": "def pytest_runtest_logreport(): os.kill(os.getpid(), signal.SIGINT)",
    "reports are written": """
from pytest_regional.report import junit
add_to_run = junit.add_to_run
def interrupted(*arguments):
    os.kill(os.getpid(), signal.SIGINT)
    return add_to_run(*arguments)
junit.add_to_run = interrupted
""",
}


@pytest.mark.parametrize("when", INTERRUPTED_WHILE)
def test_an_interrupt_leaves_reports(tmp_path, when):
    run = signalled(tmp_path, "SIGINT", body="pass", conftest=f"import signal\n{INTERRUPTED_WHILE[when]}\n")
    assert run.status == pytest.ExitCode.INTERRUPTED
    assert "INTERNALERROR" not in run.printed
    assert "Traceback" not in run.printed
    assert len(run.report["tests"]) == {"a test is reported": 1, "reports are written": 3}[when]


def test_who_catches_exceptions_does_not_catch_it(tmp_path):
    """As compilers do, and comparisons of what is raised: a campaign would go on until it is killed."""
    body = "\n    ".join(("for _ in range(60):", "    try: send('SIGTERM')", "    except Exception: pass"))
    run = signalled(tmp_path, "SIGTERM", body=body)
    is_ended_by(run, "SIGTERM")


def test_what_is_raised_is_lost_and_the_run_ends_behind_the_test(tmp_path):
    run = signalled(tmp_path, "SIGTERM", body="try: send('SIGTERM')\n    except BaseException: pass")
    assert run.status == 128 + signal.SIGTERM
    assert "test_behind" not in run.ended
    assert run.report["unfinished"].startswith("SIGTERM ended it while it ran test_it.py::test_it")


#: Somebody else has arranged what is to come of two signals.
ARRANGED = """
import faulthandler, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def pytest_configure(): faulthandler.register(signal.SIGHUP, file=open('stacks', 'w'))
def pytest_unconfigure(): assert os.path.getsize('stacks')
"""


def test_a_handler_of_somebody_else_stays(tmp_path):
    body = "os.kill(os.getpid(), signal.SIGTERM); os.kill(os.getpid(), signal.SIGHUP); time.sleep(0.1)"
    run = signalled(tmp_path, "SIGTERM", body=body, conftest=ARRANGED)
    assert run.status == 0
    assert run.ended == dict.fromkeys(["test_before", "test_it", "test_behind"], "passed")


#: What Python cannot interrupt: it runs a handler when this is over.
NATIVE = {
    "holds the interpreter": "all(itertools.repeat(True, 400_000_000))",
    "waits for a process": "subprocess.run(['sleep', '60'])",
}


@pytest.mark.slow("compiles C++", fast="test_who_catches_exceptions_does_not_catch_it")
@pytest.mark.parametrize("body", NATIVE.values(), ids=NATIVE)
def test_a_native_compile_ends_with_the_run_and_its_report(tmp_path, body):
    later = "import subprocess; subprocess.Popen(['sh', '-c', 'sleep 1; kill -TERM $0', str(os.getpid())])"
    run = signalled(tmp_path, "SIGTERM", body=f"{later}; {body}; time.sleep(60)")
    is_ended_by(run, "SIGTERM")
    assert run.ended == {"test_before": "passed", "test_it": "not finished"}


LONG_TEARDOWN = """
@pytest.fixture(scope="session", autouse=True)
def server():
    yield
    time.sleep(11)
"""


@pytest.mark.slow("the run has an end of seconds", fast="test_a_signal_while_reports_are_written")
def test_the_end_of_the_run_takes_as_long_as_it_takes(tmp_path):
    imports = "import os, signal, time, pytest\n"
    run = signalled(tmp_path, "SIGTERM", "-n2", conftest=imports + LONG_TEARDOWN)
    is_ended_by(run, "SIGTERM")


def test_a_signal_while_reports_are_written(tmp_path):
    conftest = """
import signal
def pytest_sessionfinish(session):
    if not hasattr(session.config, "workerinput"):
        os.kill(os.getpid(), signal.SIGTERM)
"""
    run = signalled(tmp_path, "SIGTERM", body="pass", conftest=conftest)
    assert run.status == 128 + signal.SIGTERM
    assert run.ended == dict.fromkeys(["test_before", "test_it", "test_behind"], "passed")


def test_a_second_signal_ends_the_process_at_once(tmp_path):
    body = "try: send('SIGTERM')\n    except BaseException: send('SIGTERM')"
    run = signalled(tmp_path, "SIGTERM", body=body)
    assert run.status == -signal.SIGTERM
    assert "test_it.py::test_it" in run.report["unfinished"]


def test_handlers_are_restored(pytester):
    def handlers():
        return [signal.getsignal(getattr(signal, name)) for name in SIGNALS]

    before = handlers()
    pytester.makeconftest("import signal\ndef pytest_runtest_setup(): print(signal.getsignal(signal.SIGTERM))")
    pytester.makepyfile("def test_it(): pass")
    result = pytester.runpytest_inprocess("--regional-backend=aot_eager", "--regional-device=cpu", "-s")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*bound method EndingSignals*"])
    assert handlers() == before
