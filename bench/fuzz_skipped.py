"""Count what the generator leaves out, by operator and reason: ``python -m bench.fuzz_skipped --examples 2000``.

A step that does not fit is skipped, which costs nothing, and hides nothing only as long as it is counted: an operator
that is drawn and never fits is not tested. Programs are built in eager, and nothing is compiled. The last table names
the arguments of ATen's operators that keep their default, with the reason.
"""

from __future__ import annotations

import argparse
import collections
import platform
import random
from collections import Counter

import torch

from pytest_regional._torch.operators import aten_arguments
from pytest_regional.fuzz.draw.encoding import program_of
from pytest_regional.fuzz.draw.graphs import random_encoding
from pytest_regional.fuzz.model.building import value_ranges
from pytest_regional.fuzz.operators.schemas import NOT_DRAWN, choices_of
from pytest_regional.fuzz.operators.table import operators

#: What the source of an operator that comes from a schema begins with.
_ATEN = "torch.ops.aten."


def main() -> None:
    """Draw, count, print."""
    options = _options()
    source = random.Random(options.seed)
    refusals: Counter[tuple[str, str]] = collections.Counter()
    drawn: Counter[str] = collections.Counter()
    outputs: Counter[str] = collections.Counter()
    for _ in range(options.examples):
        program = program_of(random_encoding(source), None, refusals)
        drawn.update(step.operator for step in program.all_steps())
        ranges = value_ranges(program)
        outputs.update("exact" if ranges[number].exact else "rounded" for number in program.outputs)
    print(f"torch {torch.__version__}, Python {platform.python_version()}, seed {options.seed}")
    print(f"{options.examples} programs, {drawn.total()} steps of {len(drawn)} operators")
    print(f"outputs: {', '.join(f'{count} {kind}' for kind, count in outputs.most_common())}")
    _print_reasons(refusals, drawn)
    _print_operators(refusals, drawn, options.most)
    _print_arguments()


def _print_reasons(refusals: Counter[tuple[str, str]], drawn: Counter[str]) -> None:
    reasons: Counter[str] = collections.Counter()
    for (name, reason), count in refusals.items():
        reasons[reason.replace(name, "...")] += count
    print("\nskipped, by reason:")
    for reason, count in reasons.most_common():
        print(f"  {count:6} {reason}")


def _print_operators(refusals: Counter[tuple[str, str]], drawn: Counter[str], most: int) -> None:
    skipped: Counter[str] = collections.Counter()
    for (name, _), count in refusals.items():
        skipped[name] += count
    never = [name for name in operators() if not drawn[name] and operators()[name].family != "data_dependent"]
    print(f"\n{len(never)} operators that were never drawn: {', '.join(never)}")
    print("\ndrawn and skipped, of the operators that are skipped most often:")
    rarest = sorted(skipped, key=lambda name: (drawn[name] + 1) / (skipped[name] + 1))
    for name in rarest[:most]:
        reasons = sorted(((count, reason) for (one, reason), count in refusals.items() if one == name), reverse=True)
        shown = "; ".join(f"{count} {reason}" for count, reason in reasons[:3])
        print(f"  {drawn[name]:5} {skipped[name]:6} {name}: {shown}")


def _print_arguments() -> None:
    left: Counter[str] = collections.Counter()
    for operator in operators().values():
        if operator.template.startswith(_ATEN):
            overload = operator.template.removeprefix(_ATEN).partition("(")[0].removesuffix(".default")
            arguments = aten_arguments(overload) or ()
            left.update(
                one.name
                for one in arguments
                if "Tensor" not in one.type and f"{{{one.name}}}" not in operator.template and choices_of(one) is None
            )
    print("\narguments that keep their default, by how many operators have them:")
    for name, count in left.most_common():
        print(f"  {count:5} {name}: {NOT_DRAWN.get(name, 'nothing is known of it')}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most", type=int, default=40, help="how many operators are shown")
    return parser.parse_args()


if __name__ == "__main__":
    main()
