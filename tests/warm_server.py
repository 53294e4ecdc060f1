"""The server's side of ``warm_process``: import torch and its compilers, then fork a process for each request.

Clients connect to a socket. A request is a line of JSON: ``module``, ``arguments``, ``folder``, ``environment``,
``stdout`` and ``stderr`` (files). The answer is two lines: the process's number when it runs, its exit status when it
has ended.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping
from typing import NoReturn

import warm_workers
from warm_ending import run_and_leave
from warm_process import fixed

#: What the smallest program imports that Inductor compiles on a CPU, and what runs tests: what imports the rest of what
#: was seen in ``sys.modules`` after it. Modules of this project are not among them: they are what is tested.
PRELOADED = (
    "hypothesis",
    "numpy",
    "pytest",
    "sympy.physics",
    "sympy.tensor.tensor",
    "torch",
    "torch._dynamo",
    "torch._dynamo.dce_extra_outputs",
    "torch._dynamo.repro.after_dynamo",
    "torch._functorch._aot_autograd.subclass_codegen",
    "torch._higher_order_ops.passes.inline_invoke_subgraph",
    "torch._inductor.bounds",
    "torch._inductor.choices",
    "torch._inductor.codegen.memory_planning",
    "torch._inductor.codegen.segmented_tree",
    "torch._inductor.compile_fx",
    "torch._inductor.extern_node_serializer",
    "torch._inductor.fx_passes.apply_gumbel_max_trick",
    "torch._inductor.fx_passes.efficient_conv_bn_eval",
    "torch._inductor.fx_passes.fuse_attention",
    "torch._inductor.fx_passes.mkldnn_fusion",
    "torch._inductor.fx_passes.pad_mm",
    "torch._inductor.fx_passes.quantization",
    "torch._inductor.hooks",
    "torch._inductor.kernel_template_choice",
    "torch._inductor.runtime.caching",
    "torch._subclasses.schema_check_mode",
    "torch.distributed.tensor.experimental",
    "torch.export._trace",
    "torch.fx.experimental.validator",
    "torch.utils.cpp_extension",
)
#: The modules whose assertions pytest rewrites when it imports them as a plugin's.
MARKED_BY_PYTEST = ("hypothesis", "_hypothesis_globals")
SECONDS_WITHOUT_CLIENTS = 60


def main(address: str) -> NoReturn:
    """Listen at ``address``, say "ready", and fork a process for each client; end with the last of them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # clients end first, and this when they have
    if os.fork():
        os._exit(0)  # a test that ends what its own process has started shall not end what others asked for
    prepare()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    os.write(1, b"ready\n")
    os.dup2(2, 1)
    gc.collect()
    gc.freeze()  # processes collect only what is theirs, and do not copy what they share
    clients: list[int] = []  # each ends when the process that serves the client does
    while True:
        changed = select.select([listener, *clients], [], [], None if clients else SECONDS_WITHOUT_CLIENTS)[0]
        for ended in set(changed) - {listener}:
            clients.remove(ended)
            os.close(ended)
            os.wait()
        if listener in changed:
            connection, _ = listener.accept()
            alive, held = os.pipe()
            if os.fork() == 0:
                for number in (listener.fileno(), alive, *clients):
                    os.close(number)
                serve(connection, held)
            os.close(held)
            connection.close()
            clients.append(alive)
        if not clients:
            leave_nothing(address)
            os._exit(0)  # what was frozen, libraries would tell as leaked


def leave_nothing(address: str) -> None:
    """Remove the socket, its lock, and the folder unless another server listens there."""
    with contextlib.suppress(OSError):
        os.unlink(address)
        os.unlink(f"{address}.lock")
        os.rmdir(os.path.dirname(address))


def prepare() -> None:
    """Import, and compute what depends on nothing but what is installed."""
    for name in PRELOADED:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:  # another torch: its processes import what they need
            if not (error.name or "").startswith("torch."):
                raise
    for name in MARKED_BY_PYTEST:
        imported = sys.modules[name]
        imported.__doc__ = f"{imported.__doc__ or ''}\nPYTEST_DONT_REWRITE"  # pytest would warn that it is too late
    import torch._dynamo
    import torch._inductor.codecache
    from torch._inductor.codegen.common import get_device_op_overrides, init_backend_registration
    from torch._inductor.fx_passes import joint_graph, post_grad
    from torch._inductor.runtime import triton_compat

    # What the first compile of a process does before it compiles: it imports all backends, and makes the patterns of
    # Inductor's passes, which is half a second.
    torch._dynamo.list_backends()
    init_backend_registration()
    get_device_op_overrides("cpu")
    joint_graph.lazy_init(torch.device("cpu"))
    post_grad.lazy_init()

    # Every key of a cache holds these, and each takes half a second.
    torch._inductor.codecache.torch_key()
    if triton_compat.HAS_TRITON:
        triton_compat.triton_key()


def serve(connection: socket.socket, held: int) -> NoReturn:
    """Fork a process for each request of one client, until it closes ``connection``."""
    search_path = sys.path[1:]
    for line in connection.makefile():
        request = json.loads(line)
        number = os.fork()
        if number == 0:
            for opened in (connection.detach(), held):
                os.close(opened)
            run(request, search_path)
        connection.sendall(f"{number}\n".encode())
        connection.sendall(f"{os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])}\n".encode())
    os._exit(0)


def run(request: dict[str, object], search_path: list[str]) -> NoReturn:
    """Be ``python -m MODULE ARGUMENTS`` in its folder, environment and files, from here to the end."""
    for number, name, mode in (
        (0, os.devnull, os.O_RDONLY),
        (1, request["stdout"], os.O_WRONLY | os.O_APPEND),
        (2, request["stderr"], os.O_WRONLY | os.O_APPEND),
    ):
        opened = os.open(str(name), mode)
        os.dup2(opened, number)
        os.close(opened)
    become(request, search_path)
    arguments: list[str] = list(request["arguments"])  # type: ignore[call-overload]
    if request["module"] == "pytest" and warm_workers.asked_for(arguments):
        read_on_import = fixed(os.environ)
        warm_workers.replace_execnets(
            lambda environment: fixed(environment) == read_on_import, lambda worker: become(worker, search_path)
        )
    sys.argv[1:] = arguments
    sys.orig_argv = [sys.executable, "-m", str(request["module"]), *sys.argv[1:]]
    run_and_leave(lambda: runpy.run_module(str(request["module"]), run_name="__main__", alter_sys=True))


def become(request: Mapping[str, object], search_path: list[str]) -> None:
    """Take the folder, the environment and the search path of a request."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(str(request["folder"]))
    os.environ.clear()
    os.environ.update(request["environment"])  # type: ignore[call-overload]
    tempfile.tempdir = None
    added = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [os.getcwd(), *added, *search_path]
    importlib.invalidate_caches()


if __name__ == "__main__":
    main(sys.argv[1])
