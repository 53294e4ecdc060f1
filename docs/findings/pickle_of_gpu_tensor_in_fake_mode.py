"""A tensor on a GPU cannot be pickled in a fake mode, in which AOTAutograd stores results: an error, or a crash."""

import os
import pickle
import subprocess
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch
from torch._subclasses import FakeTensorMode

if not torch.cuda.is_available():
    print(f"torch {torch.__version__}: not checked: it needs a GPU")
    sys.exit(2)

if sys.argv[1:] == ["pickle"]:
    value = torch.ones(3, device="cuda")
    with FakeTensorMode(allow_non_fake_inputs=True) if os.environ.get("ALLOW") else FakeTensorMode():
        data = pickle.dumps(value)
    sys.exit(not torch.equal(pickle.loads(data), value))

seen = []
for allow in ("", "1"):
    child = [sys.executable, __file__, "pickle"]
    run = subprocess.run(child, env={**os.environ, "ALLOW": allow}, capture_output=True, text=True, check=False)
    said = run.stderr.strip().splitlines()
    seen.append(
        "" if run.returncode == 0 else f"exit status {run.returncode}, {said[-1][:80] if said else 'in silence'}"
    )
if any(seen):
    print(
        f"torch {torch.__version__}: still fails: {seen[0] or 'right'}; with other inputs allowed: {seen[1] or 'right'}"
    )
    sys.exit(1)
print(f"torch {torch.__version__}: fixed")
