"""Write a finding as a script that anyone can run: it prints what it sees; exit status 1 says that it still fails.

It exits with 0 where the defect is fixed, and with 2 where that cannot be said: torch, the backend or another package
cannot be imported, eager refuses the program, or there is no compiler. An uncaught exception means 2 as well; Python
itself would exit with 1.

Broken parity and compiles that fail need nothing but torch. The other oracles are about what a harness observes; their
scripts need this package and say so.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from pytest_regional._base.text import SecretVariables, printable
from pytest_regional.fuzz.model.program import Program
from pytest_regional.harness.kernel_store import environment_of_scripts

#: Oracles whose scripts need only torch.
STAND_ALONE = ("compiles", "parity")

_START = '''\
"""{title}

{note}
"""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()


def cannot_be_checked(kind, error, trace):
    """Exit with 2, neither 0 (fixed) nor 1 (still fails): the error says nothing about the defect."""
    sys.__excepthook__(kind, error, trace)
    print(f"cannot be checked here: {{kind.__name__}}", flush=True)
    os._exit(2)


if __name__ == "__main__":
    sys.excepthook = cannot_be_checked

'''

_REGIONAL_INDUCTOR = """\
from torch._dynamo.backends.common import aot_autograd
from torch.fx.passes.regional_inductor import regional_inductor
from torch.fx.traceback import preserve_node_meta


def backend(gm, example_inputs):
    with preserve_node_meta():
        return aot_autograd(fw_compiler=regional_inductor, bw_compiler=regional_inductor)(gm, example_inputs)

"""

_WITH_PARTITIONER = """\
from functorch.compile import {function}
from torch._dynamo.backends.common import aot_autograd
from torch.fx.passes.regional_inductor import regional_inductor
from torch.fx.traceback import preserve_node_meta


def backend(gm, example_inputs):
    with preserve_node_meta():
        return aot_autograd(
            fw_compiler=regional_inductor, bw_compiler=regional_inductor, partition_fn={function}
        )(gm, example_inputs)

"""

#: How a script makes the backend with a partitioner: source, by the backend's name and the partitioner's.
_PARTITIONED = {
    ("torch", "default"): _WITH_PARTITIONER.format(function="default_partition"),
    ("torch", "min_cut"): _WITH_PARTITIONER.format(function="min_cut_rematerialization_partition"),
    ("aot_eager", "default"): 'backend = "aot_eager_default_partitioner"\n',
    ("aot_eager", "min_cut"): 'backend = "aot_eager"\n',
}

#: How a script makes the backend: source, by the backend's name.
_BACKENDS = {
    "torch": _REGIONAL_INDUCTOR,
    "inductor": 'backend = "inductor"\n',
    "aot_eager": 'backend = "aot_eager"\n',
    "reference": 'backend = "regional"  # of the package pytest-regional\n',
}

#: A backend of somebody's own: importable, or in the folder that the script is run from, as pytest is.
_IMPORTED = """\
sys.path.append(os.getcwd())
try:
    from {module} import {name}
except Exception as error:
    print(f"the backend cannot be imported: {{type(error).__name__}}: {{error}}")
    sys.exit(2)

backend = {attribute}.factory() if hasattr({attribute}, "factory") else {attribute}
"""

_RUN = """\
def run(function, seed):
    \"\"\"Return what a call leaves: outputs, gradients, inputs afterwards.\"\"\"
    arguments = inputs("cpu", seed)
    torch.manual_seed(seed)
    outputs = function(*arguments)
    differentiable = [value for value in outputs if value.requires_grad]
    if TRAINING and differentiable:
        g = torch.Generator().manual_seed(seed)
        cotangents = [torch.rand(value.shape, generator=g).to(value) for value in differentiable]
        torch.autograd.backward(differentiable, cotangents)
    named = [(f"output {index}", value) for index, value in enumerate(outputs)]
    named += [(f"input {index} afterwards", value) for index, value in enumerate(arguments)]
    named += [(f"gradient of input {index}", value.grad) for index, value in enumerate(arguments)]
    return [(name, value.detach()) for name, value in named if value is not None]

"""

_DIFFERENCES = """\
def differences(found, expected):
    \"\"\"Yield where two runs differ by more than rounding.\"\"\"
    if [name for name, _ in found] != [name for name, _ in expected]:
        yield f"compiled has {[name for name, _ in found]}, eager {[name for name, _ in expected]}"
        return
    for (name, ours), (_, theirs) in zip(found, expected):
        for kind in ("dtype", "shape", "stride"):
            one, other = (getattr(value, kind) for value in (ours, theirs))
            one, other = (one(), other()) if callable(one) else (one, other)
            if one != other and (kind != "stride" or theirs.numel() > 1):
                yield f"{name}: {kind} {one}, eager {other}"
        if ours.shape == theirs.shape and not close(ours, theirs):
            yield f"{name}: {ours.flatten()[:4].tolist()} ..., eager {theirs.flatten()[:4].tolist()} ..."


def close(ours, theirs):
    if not theirs.dtype.is_floating_point:
        return torch.equal(ours, theirs.to(ours.dtype))
    tolerance = 16 * torch.finfo(theirs.dtype).eps
    return torch.allclose(ours.double(), theirs.double(), rtol=tolerance, atol=tolerance, equal_nan=True)

"""

_COMPILED = """\
torch._inductor.config.fallback_random = True  # the same random numbers as eager
compiled = torch.compile(program, backend=backend, fullgraph=True, dynamic=DYNAMIC)
"""

#: Behind it a compile that fails is the backend's failure.
_LACKING = """\
def is_lacking(error):
    \"\"\"Whether a compile failed for what this machine has not: a package, a compiler.\"\"\"
    while error is not None:
        if isinstance(error, ModuleNotFoundError) or type(error).__name__ in ("InvalidCxxCompiler", "TritonMissing"):
            return True
        error = getattr(error, "inner_exception", None) or error.__cause__
    return False

"""

_PARITY = """\
wrong = []
for seed in SEEDS:
    expected = run(program, seed)
    try:
        found = run(compiled, seed)
    except Exception as error:
        if is_lacking(error):
            raise
        wrong.append(f"call {seed + 1}: compiled raises {type(error).__name__}: {' '.join(str(error).split())[:160]}")
    else:
        wrong += [f"call {seed + 1}: {what}" for what in differences(found, expected)]
print("\\n".join(wrong))
print(f"torch {torch.__version__}: {'still fails' if wrong else 'fixed'}")
sys.exit(bool(wrong))
"""

_COMPILES = """\
for seed in SEEDS:
    run(program, seed)
    try:
        run(compiled, seed)
    except Exception as error:
        if is_lacking(error):
            raise
        text = " ".join(str(error).split())[:160]
        print(f"torch {torch.__version__}: still fails: {type(error).__name__}: {text}")
        sys.exit(1)
print(f"torch {torch.__version__}: fixed")
"""

_WITH_HARNESS = """\
from pytest_regional.fuzz.oracles import OracleViolationError
from pytest_regional.fuzz.findings.replaying import finding_beside
from pytest_regional.testing import regional

with regional({backend!r}, {device!r}, expects_regions=False) as harness:
    try:
        finding_beside(__file__).check(harness)
    except OracleViolationError as violation:
        print(f"torch {{torch.__version__}}: still fails: {{violation}}")
        sys.exit(1)
print(f"torch {{torch.__version__}}: fixed")
"""


def backend_source(backend: str, partitioner: str | None = None) -> tuple[str, str]:
    """Return what ``torch.compile`` is given for a backend, as source, and the source that has to stand before.

    Args:
        backend: as ``--regional-backend`` takes it.
        partitioner: which of AOTAutograd's it is to use, where a script can say so; ``None`` for what it takes by
            itself.
    """
    own = _PARTITIONED.get((backend, partitioner or "")) or _BACKENDS.get(backend)
    source = own or _imported(backend)
    if source.startswith("backend = "):
        return source.partition("backend = ")[2].partition("\n")[0].partition("  #")[0], ""
    return "backend", source if own else f"import os\nimport sys\n\n{source}"


def stand_alone(program: Program, oracle: str, title: str, backend: str, culprit: str = "") -> str | None:
    """Return a script that needs only torch (and the backend itself); None where the oracle cannot be shown so.

    Args:
        program: the program, reduced.
        oracle: which oracle it breaks.
        title: one sentence saying what happens.
        backend: the backend, as ``--regional-backend`` takes it.
        culprit: the step of the compile that is to blame, where that is known.
    """
    if program.partitioner:
        made = _PARTITIONED.get((backend, program.partitioner), "")
    else:
        made = _BACKENDS.get(backend) or _imported(backend)
    if oracle not in STAND_ALONE or not made:
        return None
    constants = f"SEEDS = (0, 1)\nTRAINING = {program.training}\nDYNAMIC = {program.dynamic}\n"
    blamed = f" To blame:\n{_sentence(culprit.partition(chr(10))[0])}" if culprit else ""
    lines = program.source.splitlines()
    last = max(index for index, line in enumerate(lines) if line.startswith(("import ", "from ")))
    head, body = lines[: last + 1], lines[last + 1 :]
    return (
        _START.format(title=_sentence(title), note=f"Found by fuzzing, reduced.{blamed}")
        + "\n".join([*head, "import torch._inductor.config", made, *body])
        + f"\n\n{constants}\n\n"
        + _RUN
        + (f"\n{_DIFFERENCES}" if oracle == "parity" else "")
        + f"\n{_LACKING}"
        + f"\n{_COMPILED}"
        + (_PARITY if oracle == "parity" else _COMPILES)
    )


def with_harness(title: str, shown: str, backend: str, device: str) -> str:
    """Return a script that checks the finding beside it with this package.

    Args:
        title: one sentence saying what happens.
        shown: the finding, readable, which the script holds as comments.
        backend: as ``--regional-backend`` takes it.
        device: by name.
    """
    note = "Found by fuzzing, reduced. Needs the package pytest-regional, which observes what torch does."
    comments = "".join(f"# {line}".rstrip() + "\n" for line in printable(shown).splitlines())
    start = _START.format(title=_sentence(title), note=note)
    return f"{start}import torch\n\n{comments}\n{_WITH_HARNESS.format(backend=backend, device=device)}"


def _sentence(text: str) -> str:
    """Return one line that may stand at the beginning of a docstring: neither an escape nor its end is in it."""
    line = " ".join(printable(text).split()).replace("\\", "/").replace('"""', "'''")
    return line if line.endswith(".") else f"{line}."


def _imported(backend: str) -> str:
    module, _, attribute = backend.partition(":")
    if not attribute:
        return f"backend = {backend!r}\n"
    return _IMPORTED.format(module=module, name=attribute.partition(".")[0], attribute=attribute)


#: Seconds that a script gets: an import of torch, a compile or two, on a machine that does other things as well.
SECONDS = 600.0


def shows(script: Path, text: str = "", *, seconds: float = SECONDS) -> bool:
    """Tell whether ``script`` exits with 1 and prints ``text``; one that takes longer shows nothing.

    It runs in a process of its own, with the import path of this one, for backends of the tests' own.
    """
    environment = SecretVariables(
        {**os.environ, **environment_of_scripts(), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    )
    try:
        run = run_script(script, environment, seconds)
    except subprocess.TimeoutExpired:
        return False
    return run.returncode == 1 and text in run.stdout


def run_script(script: Path, environment: Mapping[str, str], seconds: float) -> subprocess.CompletedProcess[str]:
    """Run ``script`` in an interpreter of its own.

    Raises:
        subprocess.TimeoutExpired: it did not end in ``seconds``.
    """
    command = [sys.executable, str(script)]
    return subprocess.run(
        command,
        env={**environment, "PYTHONIOENCODING": "utf-8:backslashreplace"},
        capture_output=True,
        encoding="utf-8",
        errors="backslashreplace",
        timeout=seconds,
        check=False,
    )
