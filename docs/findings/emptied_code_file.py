"""A file of Inductor's cache that lost its contents makes every later compile of that code fail.

Generated code is kept in files named by what they should hold. Where such a file exists it is taken as it is
(``torch._inductor.codecache.write`` and ``PyCodeCache``): after a full disk or a crash left it empty, the module that
is loaded has no function in it, and the program does not compile in any process until somebody deletes the file. Found
by fuzzing histories of the cache.

Expected: the file is written anew, as the code is at hand.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

PROGRAM = """
import torch, torch._inductor.config
torch._inductor.config.fx_graph_cache = False
print(torch.compile(lambda x: torch.sin(x) * 2)(torch.ones(8)).sum().item() > 0)
"""


def run_in_a_process(folder):
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder, "TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}
    program = [sys.executable, "-c", PROGRAM]
    return subprocess.run(program, env=environment, capture_output=True, text=True, check=False)


with tempfile.TemporaryDirectory() as cache:
    first = run_in_a_process(cache)
    for path in Path(cache).rglob("*.py"):
        path.write_text("")
    later = run_in_a_process(cache)

import torch

wrong = first.returncode == 0 and later.returncode != 0
said = [line for line in later.stderr.splitlines() if "Error: " in line]
print("after files were emptied:", said[-1][:160] if wrong else "it compiles")
print(f"torch {torch.__version__}: {'still fails' if wrong else 'fixed'}")
sys.exit(wrong)
