"""Processes that are forked from a server are as interpreters are, and a server never hangs or outlives its process."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from pytest_regional._base import processes
from pytest_regional.harness.fork_server.client import (
    READ_LATER,
    ForkServer,
    ForkServerError,
    why_environment_differs,
    why_search_path_differs,
)

#: A server that imports nothing is asked for it.
NOTHING = "nothing"

ROOT = Path(__file__).parents[2]

LOOK = """
    import torch._dynamo  # what it changes in the interpreter is there either way
    import gc, json, os, random, resource, signal, subprocess, sys, threading
    import numpy

    def state(stream):
        at = stream.line_buffering, stream.write_through, stream.isatty()
        return stream.name, stream.encoding, stream.errors, at

    print("said", "once")
    print(json.dumps({
        "arguments": (sys.argv, sys.orig_argv, sys.executable, sys.prefix),
        "module": (__name__, __file__, __spec__.name, __package__, sys.modules["__main__"].__name__),
        "path": sys.path,
        "flags": repr(sys.flags),
        "options": (sys._xoptions, sys.warnoptions),
        "folder": os.getcwd(),
        "environment": dict(os.environ),
        "of programs": sorted(subprocess.run(["env", "-0"], capture_output=True, text=True).stdout.split(chr(0))),
        "mask": os.umask(0),
        "limits": [resource.getrlimit(number) for number in range(16)],
        "processors": sorted(os.sched_getaffinity(0)),
        "signals": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "files": sorted(os.listdir("/proc/self/fd")),
        "streams": [state(stream) for stream in (sys.stdin, sys.stdout, sys.stderr)],
        "threads": (threading.active_count(), threading.current_thread() is threading.main_thread()),
        "torch": (torch.get_num_threads(), torch.get_num_interop_threads(), torch.cuda.is_initialized()),
        "compiled": torch._dynamo.utils.counters["stats"],
        "group": (os.getpgid(0), os.getsid(0)),
        "name": open("/proc/self/comm").read() in ("python\\n", "python3\\n", os.path.basename(sys.executable) + "\\n"),
        "multiprocessing": __import__("multiprocessing").get_start_method(allow_none=True),
        "collects": gc.isenabled(),
        "differs": [os.getpid(), hash("a"), random.random(), float(numpy.random.rand()), float(torch.rand(()))],
    }))
"""


@pytest.fixture(scope="module")
def torch_server():
    server = ForkServer({**os.environ, "PYTHONPATH": str(ROOT)}, "compilers", ("pytest_regional",))
    yield server
    server.end()


@pytest.fixture
def started():
    """Make servers that import nothing, with further variables, and end them."""
    servers = []

    def start(**more):
        server = ForkServer({**os.environ, "PYTHONPATH": str(ROOT), **more}, NOTHING)
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.end()


@pytest.fixture
def fork(tmp_path):
    """Run a program in a process of a server; return the process, and its output once it has ended."""

    @contextlib.contextmanager
    def fork(server, source, *arguments, **more):
        (tmp_path / "program.py").write_text(textwrap.dedent(source))
        with (tmp_path / "printed").open("wb") as out, (tmp_path / "complained").open("wb") as err:
            environment = {**os.environ, "PYTHONPATH": str(ROOT), **more}
            yield server.fork("program", arguments, environment, str(tmp_path), (out.fileno(), err.fileno()))

    return fork


@pytest.fixture
def run(fork, tmp_path):
    def run(server, source, *arguments, **more):
        with fork(server, source, *arguments, **more) as process:
            status = process.wait(60)
        return status, (tmp_path / "printed").read_text(), (tmp_path / "complained").read_text()

    return run


@pytest.fixture
def odd_process():
    """Give this process state that processes which it starts have from it."""
    mask, limit = os.umask(0o027), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit[0] - 1, limit[1]))
    handler, blocked = signal.signal(signal.SIGUSR2, signal.SIG_IGN), {signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    yield
    signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
    signal.signal(signal.SIGUSR2, handler)
    resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    os.umask(mask)


def all_but_hashes(differs):
    number, _, *rest = differs
    return number, *rest


STATE = """
    import os, signal
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    print(oct(os.umask(0)), signal.getsignal(signal.SIGUSR2).name, *(signal.Signals(one).name for one in blocked))
"""


def test_it_has_the_state_of_who_asks(started, run, request):
    server = started()
    server.start()  # before this process is odd
    request.getfixturevalue("odd_process")
    assert run(server, STATE)[:2] == (0, "0o27 SIG_IGN SIGTERM\n")


@pytest.mark.slow("starts a server and an interpreter with torch", fast="test_it_has_the_state_of_who_asks")
def test_it_is_as_an_interpreter(torch_server, run, tmp_path, request):
    torch_server.start()  # before this process is odd
    request.getfixturevalue("odd_process")
    before = run(torch_server, LOOK, "--first", "2", PYTEST_MINE="yes")[1]
    status, printed, complained = run(torch_server, LOOK, "--first", "2", PYTEST_MINE="yes")
    new = subprocess.run(
        [sys.executable, "-m", "program", "--first", "2"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_MINE": "yes"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (status, complained) == (new.returncode, new.stderr) == (0, "")
    forked, fresh, again = (json.loads(text.splitlines()[1]) for text in (printed, new.stdout, before))
    differs = [forked.pop("differs"), fresh.pop("differs"), again.pop("differs")]
    assert all(len(set(values)) == 3 for values in zip(*(all_but_hashes(one) for one in differs), strict=True))
    assert forked == fresh == again
    assert fresh["mask"] == 0o027


ENDS = {
    "at its end": "print('said')",
    "with a status": "import sys; sys.exit(5)",
    "with no status": "import sys; sys.exit()",
    "with a text": "import sys; sys.exit('a text')",
    "with an exception": "1 / 0",
    "by a kill": "import os; os.kill(os.getpid(), 9)",
    "by a crash": "import ctypes; ctypes.string_at(0)",
    "at once": "import atexit, os; atexit.register(print, 'never'); os._exit(7)",
    "by Ctrl-C": "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(9)",
    "by another signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "with work at its end": "import atexit; atexit.register(print, 'at its end'); print('first')",
    "with a thread": "import threading, time; threading.Thread(target=lambda: (time.sleep(.3), print('late'))).start()",
    "with a pool of threads": "from concurrent.futures import *; pool = ThreadPoolExecutor(); pool.submit(int)",
    "with a daemon": "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
    "with a closed output": "import os; print('lost'); os.close(1)",
    "by exec": "import os, sys; os.execv(sys.executable, [sys.executable, '-c', 'import sys; sys.exit(3)'])",
    "after forks": "import os, sys; sys.exit(os.waitstatus_to_exitcode(os.waitpid(os.fork() or os._exit(4), 0)[1]))",
}


@pytest.mark.parametrize("source", ENDS.values(), ids=ENDS)
def test_it_ends_as_an_interpreter(shared_server, run, tmp_path, source):
    status, printed, complained = run(shared_server, source)
    new = subprocess.run([sys.executable, "-m", "program"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (status, printed) == (new.returncode, new.stdout)
    assert complained.splitlines()[-1:] == new.stderr.splitlines()[-1:]


@pytest.fixture(scope="module")
def shared_server():
    server = ForkServer({**os.environ, "PYTHONPATH": str(ROOT)}, NOTHING)
    yield server
    server.end()


def test_it_reads_standard_input(shared_server, run, tmp_path):
    (tmp_path / "typed").write_text("typed\n")
    before = os.dup(0)
    with (tmp_path / "typed").open() as typed:
        os.dup2(typed.fileno(), 0)
        try:
            assert run(shared_server, "print(input())")[1] == "typed\n"
        finally:
            os.dup2(before, 0)
            os.close(before)


def test_hashes_are_those_of_the_server(started, run):
    one, other = started(), started()
    hashes = [int(run(server, "print(hash('a'))")[1]) for server in (one, other, one)]
    assert hashes[0] == hashes[2] != hashes[1]
    seeded = {**os.environ, "PYTHONHASHSEED": str(one.hash_seed)}
    new = subprocess.run([sys.executable, "-c", "print(hash('a'))"], env=seeded, capture_output=True, check=True)
    assert int(new.stdout) == hashes[0]
    assert run(one, "import os; print(os.environ.get('PYTHONHASHSEED'))")[1] == "None\n"


def test_a_hash_seed_that_is_set_is_the_processes_too(started, run):
    server = started(PYTHONHASHSEED="7")
    assert server.hash_seed == 7
    assert run(server, "import os; print(os.environ['PYTHONHASHSEED'])", PYTHONHASHSEED="7")[1] == "7\n"
    with pytest.raises(ForkServerError, match="its environment is not the server's: PYTHONHASHSEED"):
        run(server, "", PYTHONHASHSEED="8")


SEEN = ("OMP_NUM_THREADS", "PYTORCH_JIT", "TORCH_LOGS", "TORCHINDUCTOR_CPP_WRAPPER", "LD_PRELOAD", "MINE")


@pytest.mark.parametrize("name", SEEN)
def test_what_an_import_reads_needs_an_interpreter(name):
    differ = f"its environment is not the server's: {name}"
    assert why_environment_differs({}, {name: "1"}, ()) == differ
    assert why_environment_differs({name: "1"}, {}, ()) == differ
    assert why_environment_differs({name: "1"}, {name: "2"}, ()) == differ
    assert not why_environment_differs({name: "1"}, {name: "1"}, ())
    assert not why_environment_differs({}, {name: "1"}, (name,))


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one processor")
def test_other_processors_need_an_interpreter(started, run):
    """OpenMP counts them when it is loaded."""
    server, processors = started(), os.sched_getaffinity(0)
    server.start()
    os.sched_setaffinity(0, {min(processors)})
    try:
        with pytest.raises(ForkServerError, match="it may not use the processors that the server had"):
            run(server, "")
    finally:
        os.sched_setaffinity(0, processors)
    assert run(server, "print(1)")[1] == "1\n"


def test_no_value_is_named():
    why = why_environment_differs({}, {f"KEY{number}": "secret" for number in range(5)}, ())
    assert why == "its environment is not the server's: KEY0, KEY1, KEY2 and 2 more"


def test_the_assembler_that_inductor_finds_needs_none():
    """Inductor names it in the environment when it first compiles for a GPU; Triton reads it when it compiles."""
    assert why_environment_differs({}, {"TRITON_PTXAS_PATH": "/bin/ptxas"}, READ_LATER) == ""


def test_coverage_needs_an_interpreter():
    measured = {"COVERAGE_PROCESS_START": "rc"}
    assert "measures an interpreter from its start" in why_environment_differs(measured, measured, ())


def test_a_module_in_front_of_the_servers_needs_an_interpreter(started, run, tmp_path):
    server = started()
    assert run(server, "import json; print(json.__file__ != 'here')")[1] == "True\n"
    (tmp_path / "json.py").write_text("")
    with pytest.raises(ForkServerError, match=f"json in {tmp_path} differs from the server's"):
        run(server, "")


@pytest.mark.parametrize("name", ["sitecustomize", "json"])
def test_so_does_one_that_is_named(tmp_path, name):
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").touch()
    environment = {"PYTHONPATH": os.pathsep.join(["", str(tmp_path)])}
    assert name in why_search_path_differs("/nowhere", environment, {"json": "/lib"})
    assert not why_search_path_differs("/nowhere", environment, {name: str(tmp_path)})
    assert not why_search_path_differs("/nowhere", {"PYTHONPATH": "/nowhere/else"}, {"json": "/lib"})


# The server's own end


def wait_until(condition):
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_server_that_was_killed_forks_no_more(started, run):
    server = started()
    assert run(server, "print(1)")[0] == 0
    os.kill(server.number, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(ForkServerError, match="the server of new processes has ended"):
            run(server, "print(1)")


def test_a_server_that_is_killed_while_a_process_runs(started, fork):
    server = started()
    with fork(server, "import time; time.sleep(60)") as process:
        os.kill(server.number, signal.SIGKILL)
        with pytest.raises(ForkServerError, match="ended before the process"):
            process.wait(20)
        wait_until(lambda: not processes.runs(process.pid))


def test_a_server_that_does_not_answer(started, run, monkeypatch):
    monkeypatch.setattr("pytest_regional.harness.fork_server.client._FORK_SECONDS", 0.5)
    monkeypatch.setattr("pytest_regional.harness.fork_server.client._END_SECONDS", 0.5)
    server = started()
    server.start()
    number = server.number
    os.kill(number, signal.SIGSTOP)
    with pytest.raises(ForkServerError, match="the server of new processes has ended"):
        run(server, "print(1)")
    assert not processes.runs(number)


def test_a_server_that_cannot_start(started):
    server = started(PYTHONHOME="/nowhere")
    for _ in range(2):
        with pytest.raises(ForkServerError, match=r"did not start; it printed:[\s\S]*(encodings|Python)"):
            server.start()


def test_a_server_that_takes_too_long(started, monkeypatch, tmp_path):
    monkeypatch.setattr("pytest_regional.harness.fork_server.client._START_SECONDS", 1.0)
    (tmp_path / "sitecustomize.py").write_text("import time; time.sleep(60)")
    with pytest.raises(ForkServerError, match="did not start"):
        started(PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}").start()


def test_a_server_with_threads_is_not_used(started, tmp_path):
    source = "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    (tmp_path / "sitecustomize.py").write_text(source)
    with pytest.raises(ForkServerError, match="it has 2 threads"):
        started(PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}").start()


def test_a_server_with_cuda_is_not_used(started, tmp_path):
    source = """
        import sys, types
        sys.modules["torch"] = types.SimpleNamespace(cuda=types.SimpleNamespace(is_initialized=lambda: True))
    """
    (tmp_path / "sitecustomize.py").write_text(textwrap.dedent(source))
    with pytest.raises(ForkServerError, match="it has initialized CUDA"):
        started(PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}").start()


ASKS = """
    import os, sys, time
    from pytest_regional.harness.fork_server.client import ForkServer

    server = ForkServer(os.environ, {preload!r})
    process = server.fork("sleeps", [], os.environ, os.getcwd(), (1, 2))
    if "--fork" in sys.argv and os.fork() == 0:
        time.sleep(60)  # with all files of the other one
        os._exit(0)
    print(server.number, process.pid, flush=True)
    {end}
"""


@pytest.mark.parametrize("arguments", [(), ("--fork",)], ids=["alone", "with a fork that lives on"])
@pytest.mark.parametrize("end", ["time.sleep(60)", "os._exit(3)", "sys.exit()"])
def test_server_and_processes_end_with_who_started_them(tmp_path, end, arguments):
    (tmp_path / "asks.py").write_text(textwrap.dedent(ASKS.format(preload=NOTHING, end=end)))
    (tmp_path / "sleeps.py").write_text("import time; time.sleep(60)")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "asks", *arguments]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as asks:
        numbers = [int(number) for number in asks.stdout.readline().split()]
        below = processes.with_all_below(asks.pid)
        try:
            if "sleep" in end:
                asks.kill()
            asks.wait(20)
            wait_until(lambda: not any(map(processes.runs, numbers)))
        finally:
            processes.end({*numbers, *below} - {asks.pid})


def test_a_limit_on_time_ends_the_processes_and_not_the_server(started, fork):
    server = started()
    server.start()
    before = processes.descendants()
    with fork(server, "import time; time.sleep(60)") as process:
        assert processes.started_after(before) == [process.pid]
        assert processes.started_after(set()).count(server.number) == 0
        processes.end(processes.started_after(before))
        assert process.wait(20) == -signal.SIGKILL


def test_what_a_server_has_just_forked_is_no_server(monkeypatch):
    """It has the name of the server until it gives it up."""
    server = processes.Process(2, os.getpid(), 1, processes._SERVER)
    forked = processes.Process(3, server.number, 2, processes._SERVER)
    monkeypatch.setattr(processes, "_processes", lambda: iter([forked, server]))
    assert processes.started_after(set()) == [forked.number]


def test_it_has_a_folder_of_its_own_until_it_ends(started):
    server = started()
    server.start()
    folder = Path(server.stacks).parent
    assert folder.is_dir()
    server.end()
    assert not folder.exists()
    server.end()
