"""Print what is proved of the loops of C++ kernels: ``python -m bench.verified_loops``.

The kernels that Inductor generates for the CPU, of every function of ``tests/emulation/functions``, forward, and with
its backward where it declares one, in its first dtype, sizes static and (``--dynamic``) symbolic. They are generated
and not built, so each call ends where the first kernel would run. Each distinct kernel counts once. ``--only NAME ...``
chooses functions; ``--json FILE`` keeps one line for each kernel. Exits with 1 when a kernel is refuted.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterable
from pathlib import Path


def measured(names: list[str], dynamic: bool, failed: Counter[str]) -> Iterable[dict]:
    """Yield what is found out about each kernel of the functions called ``names``; count errors in ``failed``."""
    import torch
    from torch._functorch import config as functorch_config

    from pytest_regional._torch.inductor import kernels_not_built
    from pytest_regional.verify.cpp import verifying_loops
    from tests.emulation.functions import CASES, DTYPES
    from tests.emulation.functions.judging import compile_with_inductor, run, settings
    from tests.emulation.functions.outcome import runs_of

    # The backward is generated with the forward, whose results it would need to be run.
    early = functorch_config.patch(force_non_lazy_backward_lowering=True)
    for name in names:
        case = CASES[name]
        for one in (one for one in runs_of(case) if one.dtype == case.dtypes[0]):
            torch._dynamo.reset()
            torch.manual_seed(7)
            with settings(case), early, kernels_not_built(), verifying_loops() as verification:
                inputs = [
                    v.to(DTYPES[one.dtype]) if isinstance(v, torch.Tensor) and v.is_floating_point() else v
                    for v in case.inputs()
                ]
                try:
                    compiled = compile_with_inductor(case.function, dynamic=dynamic or case.dynamic)
                    run(compiled, inputs, one.backward, {})
                except Exception as error:  # noqa: BLE001
                    # Kernels that are not built are None, which ends the call; what has another reason is counted.
                    if "NoneType" not in str(error):
                        failed[f"{type(error).__name__}: {str(error)[:80]}"] += 1
            for found in verification.verified():
                yield {
                    "run": str(one),
                    "dynamic": dynamic,
                    "kernel": found.kernel,
                    "digest": found.digest,
                    "seconds": found.seconds,
                    "outcomes": [[o.property, o.verdict, o.reason] for o in found.outcomes],
                }


def main() -> int:
    """Measure, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--dynamic", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="verified-loops-")
    warnings.simplefilter("ignore")
    from bench.verified_kernels import tables
    from tests.emulation.functions import CASES

    failed: Counter[str] = Counter()
    started, lines = time.perf_counter(), []
    for line in measured(options.only or list(CASES), options.dynamic, failed):
        lines.append(line)
        if options.json:
            with options.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
    print(f"{time.perf_counter() - started:.0f} s, Python {platform.python_version()}", file=sys.stderr)
    for reason, count in failed.most_common():
        print(f"{count} functions not compiled: {reason}", file=sys.stderr)
    print(tables(lines))
    return int(any(o[1] == "refuted" for line in lines for o in line["outcomes"]))


if __name__ == "__main__":
    sys.exit(main())
