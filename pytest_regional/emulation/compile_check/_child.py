"""The compiling process: ``python -m pytest_regional.emulation.compile_check._child``, requests on standard input."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from pytest_regional._torch import triton
from pytest_regional.emulation.compile_check import amd_resources, nvidia_resources


def main() -> None:
    """Answer one line for each configuration, and one at the end of each request."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what compilers print goes elsewhere
    triton.stand_alone()
    folder = Path(os.environ["PYTEST_REGIONAL_KERNELS"])
    _answer(answers, {"ready": True})
    for number, line in enumerate(sys.stdin):
        request = json.loads(line)
        path = folder / f"kernel_{number}.py"
        path.write_text(request["source"], encoding="utf-8")
        for answer in _compiled(request, path):
            _answer(answers, answer)
        _answer(answers, {"end": True})


def _answer(answers: IO[str], answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def _compiled(request: dict[str, Any], path: Path) -> Iterator[dict[str, Any]]:
    what = {"kernel": request["name"], "arch": request["arch"]}
    try:
        tuner = triton.kernel_in(path, request["attribute"])
    except Exception as error:  # noqa: BLE001 - whatever a kernel's module raises is what is wrong with the kernel
        yield {**what, "config": "", "message": _first_lines(f"{type(error).__name__}: {error}")}
        return
    configs = triton.configs_of(tuner)
    for config in configs if request["all_configs"] else configs[:1]:
        told = {**what, "config": triton.config_text(config)}
        try:
            yield {**told, **_measures(tuner, config, request["target"])}
        except Exception as error:  # noqa: BLE001 - whatever the compiler raises is what is wrong with the kernel
            message, source_line = triton.compiler_message(error, tuner)
            yield {**told, "message": _first_lines(message), "source_line": source_line}


def _first_lines(message: str) -> str:
    lines = [line.rstrip() for line in message.splitlines() if line.strip()]
    return "\n".join(lines[:12])


def _measures(tuner: Any, config: Any, target: list[Any]) -> dict[str, Any]:
    printed = io.StringIO()
    begin = time.perf_counter()
    with contextlib.redirect_stdout(printed):
        compiled = triton.compile_config(tuner, config, *target)
    seconds = round(time.perf_counter() - begin, 3)
    is_amd = target[0] == "hip"
    assembly, binary = (
        (compiled.asm["amdgcn"], compiled.asm["hsaco"]) if is_amd else (compiled.asm["ptx"], compiled.asm["cubin"])
    )
    used = amd_resources(assembly) if is_amd else nvidia_resources(printed.getvalue())
    metadata = {"shared_memory": compiled.metadata.shared, "num_warps": compiled.metadata.num_warps}
    texts = {"assembly": assembly, "binary": base64.b64encode(binary).decode()}
    return {**used, **metadata, "seconds": seconds, **texts}


if __name__ == "__main__":
    main()
