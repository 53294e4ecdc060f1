"""Finds issues that a report may be a duplicate of, in an index of public issues and among kept findings.

Two things are compared: how the failure looks (kinds of difference and operators, by the patterns that the index has of
each issue) and the steps of the compiler that it comes from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from pytest_regional._base.files import text_of
from pytest_regional._torch.tracing import dispatch_mode, storage_key, with_memory
from pytest_regional._torch.vetoes import SETTING_SENTENCES
from pytest_regional.fuzz.findings.folder import Finding, FindingsFolder

_INDEX = Path(__file__).with_name("known_issues.json")

#: From here on an issue is called a likely duplicate: both looks and steps agree, or one of them wholly.
LIKELY = 0.6

#: What a sentence of blame calls a step of the compiler: its name, or the setting that takes it out.
_STEP = re.compile(
    r"(?:pass|rewrite|lowering of|decomposition of|fallback of) ([\w.]+)"
    rf"|(fusion of|the partitioner|{'|'.join(map(re.escape, SETTING_SENTENCES))})"
)

_REGION = re.compile(r"^region [^:]*: ")

#: How a sentence of blame about no step of Inductor begins, and the layer that it says.
_LAYERS = {
    "Dynamo": "dynamo",
    "AOTAutograd": "aot_autograd",
    "the partitioner": "aot_autograd",
    "the backend: right where AOTAutograd": "inductor",
    "the backend's": "regions",
    "the graph that the backend hands": "regions",
    "the settings that the backend": "regions",
    "the order in which the backend": "regions",
    "how the backend calls": "regions",
}

#: What is seen of a failure of which nothing is known but that no exception shows it.
SILENT = "parity run"

#: Features that are measured of any script. Others are known of a finding alone.
_MEASURED = ("dtype:", "training", "dynamic", "large", "input:alias", "input:edges")


@dataclass(frozen=True)
class KnownIssue:
    """One issue of the index.

    Attributes:
        number: of PyTorch's tracker; ``None`` for a finding that is kept here alone.
        name: of the finding, or of the bug's test.
        title: what happens.
        fails: a pattern of what fails, where and how: oracle, stage and origin of a finding's signature.
        raises: whether an exception shows it.
        layer: of PyTorch, as ``suites/history`` names it; empty where that is not known.
        operators: patterns; each matches an operator that takes part.
        features: of a program that shows it, all of them.
        culprits: what it comes from, as blame said of it for some program.
    """

    number: int | None
    name: str
    title: str
    fails: str
    raises: bool = False
    layer: str = ""
    operators: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    culprits: tuple[str, ...] = ()

    @property
    def steps(self) -> frozenset[str]:
        """The compiler's steps that it comes from."""
        return frozenset().union(*map(steps_in, self.culprits))


@dataclass(frozen=True)
class Known:
    """An issue, and how alike it is, from 0 to 1."""

    issue: KnownIssue
    likeness: float


@dataclass(frozen=True)
class Seen:
    """What was seen of a failure.

    Attributes:
        fails: what fails, where and how, as the signature of a finding says it; empty, or :data:`SILENT`, where that is
            not known.
        operators: names of those that take part.
        features: of the program and its inputs, as :mod:`pytest_regional.fuzz.findings.folder` names them.
        culprit: the sentence of blame.
        name: of the finding; a kept finding is no duplicate of itself.
    """

    fails: str
    operators: tuple[str, ...]
    features: frozenset[str] = frozenset()
    culprit: str = ""
    name: str = ""

    def similar_to(self, issues: Iterable[KnownIssue]) -> tuple[Known, ...]:
        """Return the issues that are alike, the likeliest first."""
        known = [Known(issue, self.likeness(issue)) for issue in issues if issue.name != self.name]
        return tuple(sorted((one for one in known if one.likeness >= LIKELY), key=lambda one: -one.likeness))

    def likeness(self, issue: KnownIssue) -> float:
        """Return how alike an issue is, from 0 to 1; 0 where anything that is known for certain speaks against it.

        Half of it is for what is seen, half for the steps that it comes from. Where neither has a step, an exception at
        the same place counts as one; of other failures, operators or features have to say it all.
        """
        layer = layer_in(self.culprit)
        # A step of Inductor's that is wrong in a region alone may be what the backend makes of it.
        layers = ("", layer, "regions") if _REGION.match(self.culprit) else ("", layer)
        if layer and issue.layer not in layers:
            return 0.0
        if any(feature.startswith(_MEASURED) and feature not in self.features for feature in issue.features):
            return 0.0
        if self.fails == SILENT and issue.raises:
            return 0.0
        if self.fails not in ("", SILENT) and not re.search(issue.fails, self.fails):
            return 0.0
        steps = steps_in(self.culprit)
        taking_part = [any(re.fullmatch(pattern, one) for one in self.operators) for pattern in issue.operators]
        looks = sum(taking_part) / len(taking_part) if taking_part else 1.0
        if steps and issue.steps:
            # Blame may name one step where two have to work together.
            return (looks + len(steps & issue.steps) / min(len(steps), len(issue.steps))) / 2
        if (steps and issue.culprits) or (issue.steps and layer) or not self.fails:
            # One has a step and the other has none, or nothing says what is wrong.
            return min(looks, 0.5)
        if issue.raises and re.search(issue.fails, self.fails.split(" ", 2)[2]):
            return (looks + 1) / 2
        says_enough = issue.operators and issue.features if self.fails == SILENT else issue.operators or issue.features
        return looks if says_enough else 0.0


def steps_in(culprit: str) -> frozenset[str]:
    """Return the steps of the compiler that a sentence of blame names; operators without their overloads."""
    return frozenset(".".join(name.split(".")[:2]) or kind for name, kind in _STEP.findall(culprit))


def layer_in(culprit: str) -> str:
    """Return the layer that a sentence of blame names, as ``suites/history`` names it; empty where it names none."""
    said = _REGION.sub("", culprit)
    named = next((layer for start, layer in _LAYERS.items() if said.startswith(start)), "")
    return named or ("inductor" if steps_in(said) else "")


def public_issues() -> tuple[KnownIssue, ...]:
    """Return the issues of the index that is part of the package; ``python -m tools.known_issues`` wrote it."""
    issues = json.loads(text_of(_INDEX))
    lists = ("operators", "features", "culprits")
    return tuple(KnownIssue(**{**issue, **{name: tuple(issue[name]) for name in lists}}) for issue in issues)


def kept_findings(folder: Path) -> tuple[KnownIssue, ...]:
    """Return the findings that are kept in a folder, as issues without a number."""
    known = []
    for path in FindingsFolder(folder).paths():
        finding = FindingsFolder(folder).read(path)
        if isinstance(finding, Finding):
            culprit = (finding.culprit or "").partition("\n")[0]
            known.append(
                KnownIssue(
                    number=None,
                    name=path.name,
                    title=finding.title,
                    fails=re.escape(fails_of(finding)),
                    raises=" at " in finding.signature.origin,
                    layer=layer_in(culprit),
                    operators=tuple(map(re.escape, dict.fromkeys(finding.program.operators))),
                    culprits=(culprit,) if culprit else (),
                )
            )
    return tuple(known)


def fails_of(finding: Finding) -> str:
    """Return what fails, where and how."""
    signature = finding.signature
    return f"{signature.oracle} {signature.stage} {signature.origin}"


# What is seen of a call in eager

#: Operators of other namespaces are a user's.
_PYTORCHS = ("aten", "prims")

#: From here on the square of a number is infinite in float32.
_LARGE = 1e19


def operators_of(call: Callable[[], Any]) -> tuple[str, ...]:
    """Return the names of the operators that ``call`` runs in eager, each once, in order of first appearance.

    They are the functions of ``torch`` and the methods of tensors that it calls, and the operators that run:
    ``aten_div_Tensor_mode``, and ``custom_scale`` for one of a user's.
    """
    names: dict[str, None] = {}

    class Functions(TorchFunctionMode):  # type: ignore[misc]  # torch is not typed here
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = getattr(func, "__name__", "")
            # The function of a property is its __get__; the property itself has the name.
            named = func.__self__.__name__ if name == "__get__" else name
            names[named.strip("_") if named.startswith("__") else named] = None
            return func(*args, **(kwargs or {}))

    class Kernels(dispatch_mode()):  # type: ignore[misc]
        #: PyTorch refuses operators that are given a program where a mode does not say that it takes them.
        supports_higher_order_operators = True

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            namespace, *name = str(func).split(".")
            known = not name or namespace in _PYTORCHS
            names["_".join((namespace if known else "custom", *name))] = None
            return func(*with_memory(func, args), **(kwargs or {}))

    with Kernels(), Functions():
        call()
    return tuple(names)


def features_of(tensors: Sequence[torch.Tensor], *, dynamic: bool) -> frozenset[str]:
    """Return the features of a call, as :mod:`pytest_regional.fuzz.findings.folder` names those of a fuzzed program.

    Args:
        tensors: what it is given, and the parameters of its model.
        dynamic: whether sizes are symbols.
    """
    found = {f"dtype:{tensor.dtype}".replace("torch.", "") for tensor in tensors}
    memories = [key for tensor in tensors if (key := storage_key(tensor)) is not None]
    if len(set(memories)) < len(memories):
        found.add("input:alias")
    if dynamic:
        found.add("dynamic")
    for tensor in tensors:
        if tensor.requires_grad:
            found.add("training")
        if tensor.is_floating_point() and tensor.layout is torch.strided:
            values = tensor.detach().double()
            if (values.abs() > _LARGE).any():
                found.add("large")
            if (~values.isfinite() | (values == 0) & values.signbit()).any():
                found.add("input:edges")
    return frozenset(found)
