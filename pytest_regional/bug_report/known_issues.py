"""Finds issues that a report may be a duplicate of, in an index of public issues and among kept findings.

Two things are compared: how the failure looks (kinds of difference and operators, by the patterns that the index has of
each issue) and the steps of the compiler that it comes from.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_regional._base.files import text_of
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

    def similar_to(self, issues: Iterable[KnownIssue], at_least: float = LIKELY) -> tuple[Known, ...]:
        """Return the issues that are alike, the likeliest first."""
        known = [Known(issue, self.likeness(issue)) for issue in issues if issue.name != self.name]
        return tuple(sorted((one for one in known if one.likeness >= at_least), key=lambda one: -one.likeness))

    def likeness(self, issue: KnownIssue) -> float:
        """Return how alike an issue is, from 0 to 1; 0 where anything that is known speaks against it.

        Half of it is for what is seen, half for the steps that it comes from. Where neither has a step, an exception at
        the same place counts as one; of other failures, operators or features have to say it all.
        """
        if not self._may_be(issue):
            return 0.0
        steps = steps_in(self.culprit)
        looks = _share(issue.operators, self.operators)
        if steps and issue.steps:
            # Blame may name one step where two have to work together.
            return (looks + len(steps & issue.steps) / min(len(steps), len(issue.steps))) / 2
        if (steps and issue.culprits) or (issue.steps and layer_in(self.culprit)) or not self.fails:
            # One has a step and the other has none, or nothing says what is wrong.
            return min(looks, 0.5)
        if issue.raises and re.search(issue.fails, self.fails.split(" ", 2)[2]):
            return (looks + 1) / 2
        says_enough = issue.operators and issue.features if self.fails == SILENT else issue.operators or issue.features
        return looks if says_enough else 0.0

    def _may_be(self, issue: KnownIssue) -> bool:
        """Return whether nothing that is known for certain speaks against an issue."""
        layer = layer_in(self.culprit)
        # A step of Inductor's that is wrong in a region alone may be what the backend makes of it.
        layers = ("", layer, "regions") if _REGION.match(self.culprit) else ("", layer)
        if layer and issue.layer not in layers:
            return False
        if any(feature.startswith(_MEASURED) and feature not in self.features for feature in issue.features):
            return False
        if self.fails == SILENT:
            return not issue.raises
        return not self.fails or re.search(issue.fails, self.fails) is not None


def _share(patterns: Sequence[str], operators: Sequence[str]) -> float:
    """Return the share of patterns that match an operator; 1 where there is none."""
    if not patterns:
        return 1.0
    return sum(any(re.fullmatch(pattern, one) for one in operators) for pattern in patterns) / len(patterns)


def steps_in(culprit: str) -> frozenset[str]:
    """Return the steps of the compiler that a sentence of blame names; operators without their overloads."""
    return frozenset(".".join(name.split(".")[:2]) or kind for name, kind in _STEP.findall(culprit))


def layer_in(culprit: str) -> str:
    """Return the layer that a sentence of blame names, as ``suites/history`` names it; empty where it names none."""
    said = _REGION.sub("", culprit)
    named = next((layer for start, layer in _LAYERS.items() if said.startswith(start)), "")
    return named or ("inductor" if steps_in(said) else "")


@functools.cache
def public_issues() -> tuple[KnownIssue, ...]:
    """Return the issues of the index that is part of the package; ``python -m tools.known_issues`` wrote it."""
    return tuple(map(_issue, json.loads(text_of(_INDEX))))


def _issue(data: Mapping[str, Any]) -> KnownIssue:
    lists = {name: tuple(data[name]) for name in ("operators", "features", "culprits")}
    return KnownIssue(
        data["number"], data["name"], data["title"], data["fails"], data["raises"], data["layer"], **lists
    )


def kept_findings(folder: Path) -> tuple[KnownIssue, ...]:
    """Return the findings that are kept in a folder, as issues without a number."""
    known = []
    for path in FindingsFolder(folder).paths():
        finding = FindingsFolder(folder).read(path)
        if isinstance(finding, Finding):
            operators = tuple(map(re.escape, dict.fromkeys(finding.program.operators)))
            culprits = tuple(filter(None, [(finding.culprit or "").partition("\n")[0]]))
            known.append(
                KnownIssue(
                    *(None, path.name, finding.title, re.escape(fails_of(finding))),
                    raises=" at " in finding.signature.origin,
                    layer=layer_in("".join(culprits)),
                    operators=operators,
                    culprits=culprits,
                )
            )
    return tuple(known)


def fails_of(finding: Finding) -> str:
    """Return what fails, where and how."""
    signature = finding.signature
    return f"{signature.oracle} {signature.stage} {signature.origin}"
