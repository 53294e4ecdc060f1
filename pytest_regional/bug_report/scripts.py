"""Short scripts that show a defect with torch alone, and the subject of a report, read from a finding or a script.

The scripts of findings (:mod:`pytest_regional.fuzz.findings.scripts`) check all that a program leaves, and say whether
it is fixed. A maintainer wants to read ten lines: these make simple inputs, compare one thing, and raise.
"""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_regional._base.documents import DocumentError
from pytest_regional._base.errors import RegionalValueError
from pytest_regional._base.files import text_of
from pytest_regional.bug_report.known_issues import fails_of
from pytest_regional.fuzz.findings.folder import Finding, FindingsFolder
from pytest_regional.fuzz.findings.scripts import backend_source
from pytest_regional.fuzz.model.arguments import assignments
from pytest_regional.fuzz.model.program import Program, Region, Step
from pytest_regional.fuzz.model.source import inputs_source, source_without_inputs
from pytest_regional.fuzz.oracles import ORACLES

#: The stages of ``torch.compile``, each with one more than the one before: the ablation that PyTorch asks for.
STAGES = ("eager", "aot_eager", "aot_eager_decomp_partition", "inductor")

#: How inputs may be filled, the plainest first; what the generator of programs fills them with comes last.
_FILLED = (
    ("torch.arange({count}.)", ".reshape({shape})"),
    ("torch.ones({shape})", ""),
    ("torch.rand({shape})", ""),
)

#: How :func:`assignments` writes the values of an input: ``signed(3, 4).to(device, torch.float32)``.
_VALUES = re.compile(r"(\w+)\(([\d, ]*)(?:below=(\d+)|dtype=[\w.]+)?\)\.to\(device(?:, torch\.(\w+))?\)")

#: Lines that compare, by what is compared; ``found`` and ``expected`` are outputs, ``a`` and ``b`` inputs.
_CHECKS = {
    "values": ('print(found, expected, sep="\\n")', "torch.testing.assert_close(found, expected, equal_nan=True)"),
    "digits": (
        "exact, both = program(*(x.double() for x in inputs())), (found, expected)",
        "errors = [max(((x - y) / y).abs().nan_to_num().max() for x, y in zip(one, exact)) for one in both]",
        'print("largest relative error, compiled and eager:", *errors)',
        "assert errors[0] <= 10 * errors[1]",
    ),
    "memory": (
        "addresses = [[x.data_ptr() for x in (*inputs, *outputs)] for inputs, outputs in ((a, found), (b, expected))]",
        "shared = [[[one == other for other in some] for one in some] for some in addresses]",
        'print("which of inputs and outputs begin at the same address:", *shared, sep="\\n")',
        "assert shared[0] == shared[1]",
    ),
    "strides": (
        "strides = [[x.stride() for x in outputs] for outputs in (found, expected)]",
        'print("strides, compiled and eager:", *strides)',
        "assert strides[0] == strides[1]",
    ),
    "inputs": ('print(a, b, sep="\\n")', "torch.testing.assert_close(a, b, equal_nan=True)"),
    "gradients": (
        "for outputs in (found, expected):",
        "    sum(x.sum() for x in outputs if x.requires_grad).backward()",
        "gradients = [[x.grad for x in inputs if x.requires_grad] for inputs in (a, b)]",
        'print(*gradients, sep="\\n")',
        "torch.testing.assert_close(*gradients, equal_nan=True)",
    ),
    "raises": (),
}

#: What is compared to see a difference, by its kind; one after the other where there are several.
_SEEN_BY = {
    "value": ("values", "digits"),
    "stride": ("strides",),
    "alias": ("memory",),
    "exception": ("raises",),
    "missing-grad": ("gradients",),
}


def short_script(
    program: str,
    inputs: str,
    backend: str,
    check: str,
    *,
    calls: int = 1,
    options: str = "",
    before: str = "",
    training: bool = False,
) -> str:
    """Return a script.

    Args:
        program: source of the function ``program``, with all that it needs.
        inputs: source of the function ``inputs(seed)``.
        backend: what ``torch.compile`` is given, as source.
        check: what is compared, a key of the checks.
        calls: how often the program is called; a second call gets other inputs.
        options: further arguments of ``torch.compile``, as source.
        before: source that stands before the compile, such as the definition of a backend.
        training: whether something in the backward raises.
    """
    seed = "seed=seed" if calls > 1 else ""
    if check == "raises":
        body = [f"program(*inputs({seed}))  # eager raises nothing", f"found = compiled(*inputs({seed}))"]
        body += ["sum(x.sum() for x in found if x.requires_grad).backward()"] if training else []
    else:
        body = [f"a, b = inputs({seed}), inputs({seed})", "found, expected = compiled(*a), program(*b)"]
        body += _CHECKS[check]
    if calls > 1:
        body = [f"for seed in range({calls}):", *(f"    {line}" for line in body)]
    compiled = f"compiled = torch.compile(program, backend={backend}{options})"
    parts = [program, inputs, *([before] if before else []), "\n".join([compiled, *body])]
    return without_scaffold("\n\n".join(part.strip("\n") for part in parts))


def scripts_of(program: Program, origin: str, backend: str) -> Iterator[str]:
    """Yield scripts that may show what is wrong with a program, the plainest first.

    Args:
        program: reduced.
        origin: what was seen, as the signature of a finding says it: ``"value of output, alias of output"``.
        backend: by name: PyTorch's, or of this package.
    """
    plain = program if may_read_regions(backend) else _without_regions(program)
    name, before = backend_source(backend, program.partitioner)
    options = f", dynamic={program.dynamic}" if program.dynamic is not None else ""
    kinds = [kind.strip() for kind in origin.split(",")]
    firsts = [kind for kind in kinds if not kind.endswith("(second call)")]
    source = source_without_inputs(plain)
    for calls in (1, 2) if firsts else (2,):
        for check in dict.fromkeys(check for kind in firsts or kinds for check in checks_of(kind)):
            for inputs in _inputs_of(plain, calls):
                training = program.training
                yield short_script(
                    source, inputs, name, check, calls=calls, options=options, before=before, training=training
                )


def may_read_regions(backend: str) -> bool:
    """Return whether a backend may compile annotated regions; PyTorch's own stages ignore annotations."""
    return backend not in STAGES


def checks_of(kind: str) -> tuple[str, ...]:
    """Return what may see a kind of difference; ``"value of grad[0]"`` is one of gradients."""
    what, of, where = kind.partition(" of ")
    if not of or " at " in kind:
        return ("raises",)
    if where.startswith("grad"):
        return ("gradients",)
    return ("inputs",) if where.startswith("input") else _SEEN_BY.get(what, ("values",))


def _without_regions(program: Program) -> Program:
    """Return a program without annotations of regions, which compilers of whole graphs ignore."""

    def unannotated(steps: Sequence[Step]) -> tuple[Step, ...]:
        scopes = [tuple(context for context in step.scope if not isinstance(context, Region)) for step in steps]
        return tuple(replace(step, scope=scope) for step, scope in zip(steps, scopes, strict=True))

    blocks = tuple(replace(block, steps=unannotated(block.steps)) for block in program.blocks)
    return replace(program, steps=unannotated(program.steps), blocks=blocks)


def _inputs_of(program: Program, calls: int) -> Iterator[str]:
    """Yield sources of ``inputs``, the plainest first."""
    lines = list(assignments(program.arguments))
    values = ", ".join(f"x{number}" for number in range(len(program.arguments)))
    for fill, reshaped in _FILLED:
        filled = [_VALUES.sub(lambda found: _filled(found, fill, reshaped), line) for line in lines]  # noqa: B023
        marks = [
            f"torch._dynamo.maybe_mark_dynamic(x{index}, {dim})"
            for index, one in enumerate(program.arguments)
            for dim in one.dynamic
        ]
        if not any("device" in line for line in filled):
            drawn = any("torch.rand" in line for line in filled)
            seeded = [f"torch.manual_seed({'seed' if calls > 1 else 0})"] if drawn or calls > 1 else []
            body = (*seeded, *filled, *marks, f"return [{values}]")
            yield "\n".join([f"def inputs({'seed' if calls > 1 else ''}):", *(f"    {line}" for line in body)])
    yield inputs_source(program.arguments)


def _filled(found: re.Match[str], fill: str, reshaped: str) -> str:
    """Return other source for the values of an input, of the same shape and dtype."""
    content, sizes, below, dtype = found.groups()
    numbers = [int(size) for size in sizes.replace(",", " ").split()]
    shape = ", ".join(map(str, numbers)) if numbers else "()"
    if content == "index":
        return f"torch.randint(0, {below}, {tuple(numbers)})"
    source = fill.format(count=math.prod(numbers), shape=shape)
    if len(numbers) != 1:
        source += reshaped.format(shape=shape)
    return source if dtype in (None, "float32") else f"{source}.to(torch.{dtype})"


#: What the first statements of our scripts do for the process: none of it shows the defect.
_SCAFFOLD = ("os.environ", "sys.excepthook")


def without_scaffold(text: str) -> str:
    """Return a script without its private cache, its hook for exceptions, and imports that only these need."""
    statements = ast.parse(text).body
    assigned = [one for one in statements if isinstance(one, ast.Assign)]
    dropped: list[ast.stmt] = [one for one in assigned if ast.unparse(one.targets[0]).startswith(_SCAFFOLD)]
    kept = [one for one in statements if one not in dropped]
    used = {node.id for one in kept for node in ast.walk(one) if isinstance(node, ast.Name)}
    for one in statements:
        if isinstance(one, ast.Import):
            names = {(alias.asname or alias.name).partition(".")[0] for alias in one.names}
            if names.isdisjoint(used):
                dropped.append(one)
    drop = {number for one in dropped for number in range(one.lineno - 1, one.end_lineno or one.lineno)}
    lines: list[str] = []
    for number, line in enumerate(text.splitlines()):
        if number not in drop and (line or lines[-2:] != ["", ""]):
            lines.append(line)
    return "\n".join(lines).strip("\n") + "\n"


#: What each kind of difference is called in a title.
_SEEN = {
    "value": "wrong values",
    "nan": "NaN or infinity otherwise than in eager",
    "stride": "other strides than eager",
    "alias": "results share memory otherwise than in eager",
    "dtype": "another dtype than eager",
    "shape": "another shape than eager",
    "missing-grad": "a gradient is missing",
    "draws": "other random numbers than eager",
}
_PLACES = {"grad": "gradients", "input": "inputs afterwards"}

#: Operators that are given a program.
_CALLERS = (
    *("cond", "while_loop", "scan", "associative_scan", "nested_compile_region", "checkpoint"),
    *("vmap", "jvp", "vjp", "jacfwd", "jacrev", "hessian", "flex_attention"),
)

#: So many scripts are tried for one backend: each is a compile or two.
_MOST_SCRIPTS = 9


@dataclass(frozen=True)
class Subject:
    """What a report is about.

    Attributes:
        name: of its file or its test, to say where it comes from.
        title: one sentence: what happens.
        expected: what would be right.
        fails: what fails, where and how, as the signature of a finding says it; empty where that is not known.
        operators: the names of the operators that take part.
        scripts: by backend, scripts that may show it, the plainest first.
        raises: the class of the exception that shows it, empty for any; ``None`` where something is computed wrong.
        culprit: what is known of it before the report is made.
        source: where the scripts come from, in a sentence.
        features: of the program, as far as they are known.
    """

    name: str
    title: str
    expected: str
    fails: str
    operators: tuple[str, ...]
    scripts: dict[str, tuple[str, ...]]
    raises: str | None = None
    culprit: str = ""
    source: str = ""
    features: frozenset[str] = frozenset()


def subject_of(path: Path) -> Subject:
    """Return what a finding's ``.json``, or a script, is about.

    Raises:
        RegionalValueError: it can be read as neither; says what to give.
    """
    try:
        if path.suffix == ".py":
            return of_script(path.name, text_of(path))
        finding = FindingsFolder(path.parent).read(path)
    except (DocumentError, OSError) as error:
        raise RegionalValueError(f"{path} cannot be read: {error}") from error
    if not isinstance(finding, Finding):
        raise RegionalValueError(f"{path} is a sequence of compiles, no program: give its script, {path.stem}.py")
    return _of_finding(path.name, finding)


def of_script(name: str, text: str) -> Subject:
    """Return what a script is about: its docstring says it.

    Raises:
        RegionalValueError: it is no Python.
    """
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise RegionalValueError(f"{name} is no Python: {error}") from error
    first = (ast.get_docstring(tree) or name).partition("\n\n")[0].replace("\n", " ")
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    # What runs in eager does not show them.
    callers = tuple(caller for caller in _CALLERS if caller in names)
    return Subject(name, first, "What eager does.", "", callers, {"": (without_scaffold(text),)}, raises="")


def _of_finding(name: str, finding: Finding) -> Subject:
    origin = finding.signature.origin
    raises = origin.partition(" at ")[0].split(":")[0] if finding.signature.oracle == "compiles" else None
    kinds = tuple(dict.fromkeys(kind.strip().partition(" (")[0] for kind in origin.split(",")))
    # The stage with the least is the plainest.
    first = ("aot_eager",) if finding.backend == "aot_eager" else ()
    oracle = ORACLES.get(finding.signature.oracle)
    scripts = {}
    for backend in dict.fromkeys((*first, "inductor", "torch", finding.backend)):
        made = scripts_of(finding.program, origin, backend) if oracle and oracle.scripted else iter(())
        scripts[backend] = tuple(itertools.islice(made, _MOST_SCRIPTS))
        if backend == finding.backend:
            scripts[backend] += (finding.script_with_torch_alone or finding.script,)
    operators = finding.program.operators
    shown = ", ".join(dict.fromkeys(operator.removeprefix("aten_").strip("_") for operator in operators[:4]))
    return Subject(
        name,
        f"{words_for(kinds, raises)} ({shown})",
        "The same call in eager raises nothing." if raises else "What eager gives.",
        fails_of(finding),
        operators,
        scripts,
        raises,
        finding.culprit or "",
        "The program was found by a fuzzer and made smaller until nothing could go",
        finding.features,
    )


def words_for(kinds: Sequence[str], raises: str | None) -> str:
    """Return in words what is seen: kinds of difference, or the class of an exception."""
    if raises:
        return f"torch.compile raises {raises}"
    seen = []
    for kind in kinds:
        what, _, where = kind.partition(" of ")
        place = next((words for prefix, words in _PLACES.items() if where.startswith(prefix)), "outputs")
        seen.append(f"{_SEEN.get(what, what)} in {place}")
    return f"torch.compile: {', '.join(dict.fromkeys(seen))}"
