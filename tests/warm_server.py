"""The server's side of ``warm_process``: import torch and its compilers, then fork a process for each request.

A request is a line of JSON on standard input: ``module``, ``arguments``, ``folder``, ``environment``, ``stdout`` and
``stderr`` (files). The answer is two lines: the process's number when it runs, its exit status when it has ended.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import signal
import sys
import tempfile
from collections.abc import Mapping
from typing import NoReturn

import warm_workers
from warm_ending import run_and_leave
from warm_process import fixed

#: What the smallest program imports that Inductor compiles on a CPU. Modules that pytest would rewrite are not among
#: them, nor those of this project: they are what is tested.
PRELOADED = (
    "numpy",
    "torch",
    "torch._dynamo",
    "torch._dynamo.backends.inductor",
    "torch._dynamo.repro.after_dynamo",
    "torch._functorch._aot_autograd.subclass_codegen",
    "torch._inductor.codegen.cpp_wrapper_gpu",
    "torch._inductor.codegen.cuda_combined_scheduling",
    "torch._inductor.codegen.wrapper_fxir",
    "torch._inductor.compile_fx",
    "torch._inductor.fx_passes.fuse_attention",
    "torch._inductor.fx_passes.mkldnn_fusion",
    "torch._inductor.fx_passes.pad_mm",
    "torch._inductor.fx_passes.quantization",
    "torch._inductor.runtime.caching",
    "torch.export._trace",
    "torch.utils.cpp_extension",
)


def main() -> NoReturn:
    """Serve until standard input ends."""
    for name in PRELOADED:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:  # another torch: its processes import what they need
            if not (error.name or "").startswith("torch."):
                raise
    search_path = sys.path[1:]
    requests, answers = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    gc.collect()
    gc.freeze()  # processes collect only what is theirs, and do not copy what they share
    print_line(answers, "ready")
    for line in os.fdopen(requests):
        request = json.loads(line)
        number = os.fork()
        if number == 0:
            os.close(answers)
            run(request, search_path)
        print_line(answers, str(number))
        print_line(answers, str(os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])))
    os._exit(0)  # what was frozen, libraries would tell as leaked


def print_line(answers: int, text: str) -> None:
    """Write a line of the answer."""
    os.write(answers, text.encode() + b"\n")


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
    main()
