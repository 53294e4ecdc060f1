"""How small programs become that show a seeded bug: with Hypothesis, with the reducer behind it, with it alone.

``python -m bench.fuzz_shrinking [--seeds 16] [--first 0]``. The bugs are predicates on programs; nothing is
compiled. The reducer was written with the seeds 0 to 15 at hand; ``--first 100`` takes sixteen others.
Also printed: programs a second, the share that Hypothesis rejects, and which operators 3,000 programs lack.
"""

import argparse
import random
import time

from hypothesis import HealthCheck, Phase, find, given, seed, settings

from pytest_regional.fuzz.draw.graphs import random_program
from pytest_regional.fuzz.operators.table import operator_named, operators
from pytest_regional.fuzz.shrink.edits import reduce_program
from pytest_regional.strategies import programs

ATTEMPTS = 500


def regions_of_values(program):
    return {number: step.region for step in program.steps for number in step.results}


def read_after_write(program):
    """A region reads what another region made, after it was written to in place. Minimal: 3 steps, 2 regions."""
    made, written = regions_of_values(program), set()
    for step in program.steps:
        for number in step.operands:
            if number in written and None not in (step.region, made.get(number)) and step.region != made[number]:
                return True
        written.update(step.operands[position] for position in operator_named(step.operator).writes)
    return False


def cast_in_region(program):
    """In one region a value is cast to bfloat16 and summed. Minimal: 2 steps, 1 region."""
    casts = {step.results[0]: step.region for step in program.steps if step.operator == "to_bfloat16"}
    return any(
        step.region is not None and casts.get(step.operands[0]) == step.region
        for step in program.steps
        if operator_named(step.operator).family == "reduction"
    )


def repeated_block(program):
    """A block is called twice, in a region and outside of one. Minimal: 2 steps and 1 of the block, 1 region."""
    calls = [(index, step.region is not None) for step in program.steps for index in step.blocks]
    return any((index, not inside) in calls for index, inside in calls)


#: Each with the number of steps, those of blocks included, and of regions of its minimal program.
BUGS = {read_after_write: (3, 2), cast_in_region: (2, 1), repeated_block: (3, 1)}

#: Families that show a bug soon enough for 16 searches.
FAMILIES = {
    read_after_write: None,
    cast_in_region: ("reduction", "cast", "view"),
    repeated_block: ("call", "checkpoint", "view", "copy"),
}


class Counting:
    """A predicate that counts its calls."""

    def __init__(self, bug):
        self.bug, self.calls = bug, 0

    def __call__(self, program):
        self.calls += 1
        return self.bug(program)


def size(program):
    return len(list(program.all_steps())), len({context for step in program.all_steps() for context in step.regions})


def found_by_hypothesis(bug, number):
    """Return what Hypothesis shrinks to, and how many programs it tried."""
    counting = Counting(bug)
    options = settings(
        max_examples=20_000,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    program = find(programs(families=FAMILIES[bug]), counting, settings=options, random=random.Random(number))
    return program, counting.calls


def found_at_random(bug, number):
    """Return the first random program that shows ``bug``."""
    from pytest_regional.fuzz.draw.encoding import Options

    families = FAMILIES[bug]
    options = Options() if families is None else Options(families=frozenset(families))
    source = random.Random(number)
    while True:
        program = random_program(source, options=options)
        if bug(program):
            return program


def reduced(bug, program):
    counting = Counting(bug)
    return reduce_program(program, counting, seconds=600, attempts=ATTEMPTS), counting.calls


def by_hypothesis(bug, number):
    """Return sizes of what Hypothesis shrinks to, and of what the reducer then makes of it, with calls."""
    program, calls = found_by_hypothesis(bug, number)
    smaller, more = reduced(bug, program)
    return (size(program), calls), (size(smaller), calls + more)


def by_reducer(bug, number):
    """Return the size of what the reducer makes of a random program, with calls."""
    smaller, calls = reduced(bug, found_at_random(bug, number))
    return size(smaller), calls


def median(numbers):
    return sorted(numbers)[len(numbers) // 2]


def print_row(bug, way, runs):
    minimal = sum(found == BUGS[bug] for found, _ in runs)
    steps, calls = median([found[0] for found, _ in runs]), median([calls for _, calls in runs])
    print(f"| {bug.__name__} | {way} | {minimal} of {len(runs)} | {steps} | {calls} |", flush=True)


def print_table(seeds):
    print("| bug | way | minimal | median steps | median calls |\n|---|---|---|---|---|", flush=True)
    for bug in BUGS:
        print_row(bug, "reducer", [by_reducer(bug, number) for number in seeds])
    for bug in BUGS:
        shrunk, reduced_too = zip(*(by_hypothesis(bug, number) for number in seeds), strict=True)
        print_row(bug, "Hypothesis", shrunk)
        print_row(bug, "Hypothesis, reducer", reduced_too)


def print_generation(count):
    source, names, begun = random.Random(0), set(), time.perf_counter()
    steps = 0
    for _ in range(count):
        program = random_program(source)
        names.update(program.operators)
        steps += len(program.steps)
    seconds = time.perf_counter() - begun
    wanted = {name for name, operator in operators().items() if operator.family != "data_dependent"}
    print(f"{count / seconds:.0f} programs a second of {steps / count:.1f} steps on average")
    print(f"operators that {count} programs lack: {sorted(wanted - names) or 'none'} of {len(wanted)}")


def print_rejection(count):
    runs = []

    @seed(0)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(programs())
    def take(program):
        runs.append(program.identity)

    begun = time.perf_counter()
    take()
    seconds = time.perf_counter() - begun
    print(
        f"Hypothesis: {len(runs) / seconds:.0f} programs a second; rejected {max(count - len(runs), 0) / count:.1%};",
        end=" ",
    )
    print(f"{1 - len(set(runs)) / len(runs):.1%} drawn twice")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--programs", type=int, default=3000, help="0: only the table of bugs")
    options = parser.parse_args()
    if options.programs:
        print_generation(options.programs)
        print_rejection(options.programs // 3)
    print_table(range(options.first, options.first + options.seeds))


if __name__ == "__main__":
    main()
