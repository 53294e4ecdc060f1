"""``--regional-processes``: processes of ``in_new_process`` are forked from a server, and all else is the same."""

from __future__ import annotations

import json
import pickle
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from pytest_regional.harness.fork_server.client import ForkServerError

TEST = """
    import os, signal, time
    from pathlib import Path

    def compile_it(regional):
        return regional.compile(block)(*pair(regional)).shape[0], hash("a"), os.getppid()

    def hang():
        time.sleep(600)

    @pytest.mark.regional_compile
    def test_two(regional):
        (cold, first), (warm, second) = regional.in_new_process(compile_it), regional.in_new_process(compile_it)
        assert (first.region_compiles, second.region_compiles) == (1, 0)
        print("one server", cold[2] == warm[2], "one seed", cold[1] == warm[1])
"""

OTHERS = """
    @pytest.mark.regional_compile
    def test_asks_for_an_interpreter(regional):
        assert regional.in_new_process(compile_it, fresh_interpreter=True).value[2] == os.getpid()

    @pytest.mark.regional_compile
    def test_sets_what_torch_reads(regional, monkeypatch):
        monkeypatch.setenv("TORCH_SHOW_DISPATCH_TRACE", "0")
        assert regional.in_new_process(compile_it).value[2] == os.getpid()
        monkeypatch.delenv("TORCH_SHOW_DISPATCH_TRACE")
        assert regional.in_new_process(compile_it).value[2] != os.getpid()
"""

KILLS = """
    @pytest.mark.regional_compile
    def test_kills(regional):
        server = regional.in_new_process(compile_it).value[2]
        os.kill(server, signal.SIGKILL)
        regional.in_new_process(compile_it)

    @pytest.mark.regional_compile
    def test_next(regional):
        regional.in_new_process(compile_it)
"""


CALLS = """
    def there():
        raise AssertionError("no process is started")

    @pytest.mark.regional_compile(expects_regions=False)
    @pytest.mark.parametrize("n", [1, 2])
    def test_calls(regional, n):
        for _ in range(n):
            regional.in_new_process(there)
"""


class Server:
    """A server that starts no process.

    Attributes:
        alarm: the seconds that the test had left while the server started, 0 where they were not counted.
        problem: why it cannot start.
    """

    def __init__(self, environment, preload):
        self.preload, self.hash_seed, self.stacks = preload, 7, ""
        self.alarm, self.problem, self.ended = None, "", False

    def start(self):
        if self.alarm is None:
            self.alarm = signal.getitimer(signal.ITIMER_REAL)[0]
        if self.problem:
            raise ForkServerError(self.problem)

    def end(self):
        self.ended = True


class Starts:
    """What a run starts in place of processes: nothing, but it notes what they were to be forked from."""

    def __init__(self):
        self.servers, self.processes = [], []

    def make_server(self, environment, preload):
        self.servers.append(Server(environment, preload))
        return self.servers[-1]

    def fork(self, server, module, arguments, environment):
        self.processes.append(self.servers.index(server))
        return arguments

    def interpret(self, module, arguments, environment, timeout):
        self.processes.append("interpreter")
        return self.answer(arguments, [], timeout)

    def answer(self, arguments, command, timeout):
        told = {"kind": "value", "value": None, "counters": {}, "compiled": False}
        Path(arguments[1]).write_bytes(pickle.dumps(told))
        return subprocess.CompletedProcess(command, 0, "")


@pytest.fixture
def starts(monkeypatch):
    found = Starts()
    monkeypatch.setattr("pytest_regional.harness.process.ForkServer", found.make_server)
    monkeypatch.setattr("pytest_regional.harness.process.fork_piped", found.fork)
    monkeypatch.setattr("pytest_regional.harness.process.run_interpreter", found.interpret)
    monkeypatch.setattr("pytest_regional.harness.process._finished", found.answer)
    return found


@pytest.mark.parametrize(
    ("option", "processes"),
    [
        ((), ["interpreter"] * 3),
        (("--regional-processes=spawn",), ["interpreter"] * 3),
        (("--regional-processes=forkserver",), [0, 0, 0]),
        (("--regional-processes=forkserver:2",), [0, 1, 0]),
    ],
    ids=["default", "spawn", "one", "two"],
)
def test_what_processes_are_forked_from(downstream, starts, option, processes):
    result = downstream(
        CALLS, "--regional-backend=aot_eager", "--regional-device=cpu", "--regional-timeout=900", *option
    )
    result.assert_outcomes(passed=2)
    assert starts.processes == processes
    told = [line for line in result.outlines if line.startswith("new processes:")]
    assert told == (["new processes: 3 forked from a server"] if 0 in processes else [])
    # The tests' time does not count the start of a server.
    assert [(one.preload, one.alarm, one.ended) for one in starts.servers] == [
        ("harness_for_cpu", 0, True) for _ in {*processes} - {"interpreter"}
    ]


def test_interpreters_in_place_of_a_server_that_cannot_fork(downstream, starts, monkeypatch):
    options = ("--regional-backend=aot_eager", "--regional-processes=forkserver", "--regional-report=report.json")

    def make_server(environment, preload):
        server = starts.make_server(environment, preload)
        server.problem = "the server of new processes has ended\nit printed: nothing"
        return server

    monkeypatch.setattr("pytest_regional.harness.process.ForkServer", make_server)
    result = downstream(CALLS, *options)
    result.assert_outcomes(passed=2)
    assert starts.processes == ["interpreter"] * 3
    result.stdout.fnmatch_lines(
        [
            "new processes: 0 forked from a server, and 3 interpreters, because:",
            "     3  the server of new processes has ended",
        ]
    )
    tests = json.loads(Path("report.json").read_text())["tests"]
    assert [sum(test["new_processes"]["interpreters"].values()) for test in tests] == [1, 2]


@pytest.mark.slow("starts a server, which imports torch", fast="test_what_processes_are_forked_from")
def test_forked(downstream, pytester):
    result = downstream(
        TEST + OTHERS,
        "--regional-backend=torch",
        "--regional-processes=forkserver",
        "--regional-report=report.json",
        "-rP",
        subprocess=True,
    )
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(
        [
            "one server True one seed True",
            "new processes: 3 forked from a server, and 2 interpreters, because:",
            "     1  the test asks for an interpreter",
            "     1  its environment is not the server's: TORCH_SHOW_DISPATCH_TRACE",
        ]
    )
    result.stdout.no_fnmatch_line("*left running*")
    tests = json.loads((pytester.path / "report.json").read_text())["tests"]
    asked = {"forked": 0, "interpreters": {"the test asks for an interpreter": 1}}
    assert [test["new_processes"]["forked"] for test in tests] == [2, 0, 1]
    assert tests[1]["new_processes"] == asked


@pytest.mark.slow("starts two servers, which import torch", fast="test_what_processes_are_forked_from")
def test_two_servers_have_two_hash_seeds(downstream, pytester):
    pytester.makeini("[pytest]\nregional_processes = forkserver:2\n")
    result = downstream(TEST, "--regional-backend=torch", "-rP", subprocess=True)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["one server False one seed False", "new processes: 2 forked from a server"])


@pytest.mark.slow("starts interpreters, which import torch", fast="test_what_processes_are_forked_from")
def test_interpreters_are_the_default(downstream):
    result = downstream(TEST, "--regional-backend=torch", "-rP", subprocess=True)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["one server True one seed False"])
    result.stdout.no_fnmatch_line("new processes:*")


@pytest.mark.slow(
    "starts two servers, which import torch", fast="test_interpreters_in_place_of_a_server_that_cannot_fork"
)
def test_a_server_that_a_test_kills(downstream):
    result = downstream(
        TEST + KILLS,
        "--regional-backend=torch",
        "--regional-processes=forkserver",
        "-k",
        "kills or next",
        subprocess=True,
    )
    result.assert_outcomes(passed=2, deselected=1)
    result.stdout.fnmatch_lines(
        [
            "new processes: 1 forked from a server, and 2 interpreters, because:",
            "*2  the server of new processes has ended*",
        ]
    )


@pytest.mark.slow("starts a server, which imports torch", fast="test_what_processes_are_forked_from")
def test_a_limit_counts_no_start_of_a_server(downstream):
    """And what hangs shows where it is."""
    result = downstream(
        TEST
        + """
    @pytest.mark.regional_compile
    def test_hangs(regional):
        regional.in_new_process(hang)
    """,
        "--regional-backend=torch",
        "--regional-processes=forkserver",
        "--regional-timeout=4",
        "-k",
        "hangs",
        subprocess=True,
    )
    result.assert_outcomes(failed=1, deselected=1)
    result.stdout.fnmatch_lines(["*still running after --regional-timeout=4 seconds*", "*in hang*"])
    result.stdout.fnmatch_lines(["new processes: 1 forked from a server"])


@pytest.mark.slow("starts runs with two workers, which import torch", fast="test_what_processes_are_forked_from")
def test_workers_have_servers_of_their_own(downstream):
    result = downstream(
        TEST + TEST.replace("test_two", "test_more"),
        "--regional-backend=torch",
        "--regional-processes=forkserver",
        "-n2",
        subprocess=True,
    )
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["new processes: 4 forked from a server"])


def test_another_value_is_a_usage_error(downstream):
    for value in ("fork", "forkserver:9"):
        result = downstream("", f"--regional-processes={value}")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        said = f"ERROR: --regional-processes={value}: expected spawn, forkserver, or forkserver:N*"
        result.stderr.fnmatch_lines([said])


def test_a_system_that_cannot_fork(downstream, monkeypatch):
    monkeypatch.delattr(socket, "send_fds")
    result = downstream("", "--regional-processes=forkserver")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --regional-processes=forkserver: * cannot fork processes: use spawn*"])
