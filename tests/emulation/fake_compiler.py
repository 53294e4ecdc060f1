"""Stands in for the compiling process; a kernel's source says what becomes of it."""

import json
import os
import subprocess
import sys
import time


def main() -> None:
    """Answer as the real one does, or end as a compiler with a defect does."""
    if "refuses-to-start" in sys.argv:
        sys.exit("no module named triton")
    _answer({"ready": True})
    for line in sys.stdin:
        source = json.loads(line)["source"]
        if source == "aborts":
            sys.stderr.write("LLVM ERROR: cannot select: intrinsic %llvm.nvvm\nStack dump:\n")
            sys.stderr.flush()
            os.abort()
        if source.startswith("starts a child"):
            child = subprocess.Popen(["sleep", "60"])
            with open(source.rpartition(" ")[2], "w") as marker:
                marker.write(str(child.pid))
            child.wait()
        if source == "hangs":
            time.sleep(60)
        request = json.loads(line)
        told = {"kernel": request["name"], "arch": request["arch"], "config": str(os.getpid())}
        used = dict.fromkeys(["registers", "shared_memory", "stack", "spill_stores", "spill_loads", "num_warps"], 1)
        _answer({**told, **used, "seconds": 0.0, "assembly": "", "binary": ""})
        _answer({"end": True})


def _answer(answer: dict) -> None:
    print(json.dumps(answer), flush=True)


main()
