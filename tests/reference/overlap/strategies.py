"""Random programs with collectives."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.reference.overlap.graphs import ATEN, BIG, C10D, SMALL, Builder

KINDS = (
    "mm", "sin", "add", "t", "narrow", "gather", "scatter", "reduce", "together", "wait", "wait", "wait", "wait_twice",
    "wait_input", "write", "in_place_reduce", "dangling",
)  # fmt: skip


class Program:
    """A module, and values to run it on."""

    def __init__(self, gm, inputs):
        self.gm, self.inputs = gm, inputs

    def __repr__(self):
        return f"Program({self.gm.graph})"


@st.composite
def programs(draw, kinds=KINDS, max_steps=30):
    """Draw a program: products, elementwise ops, views, collectives in two groups, waits at once or later, writes.

    Operands are drawn among all earlier values; shrinks towards fewer steps and towards the first operands.
    """
    steps = draw(st.lists(st.tuples(st.sampled_from(kinds), *[st.integers(0, 11)] * 3), min_size=1, max_size=max_steps))
    return made(steps, draw(st.lists(st.integers(0, 11), min_size=1, max_size=4)))


def made(steps, outputs):
    """Return the program of ``(kind, choice, choice, choice)`` steps."""
    maker = _Maker()
    for kind, *choices in steps:
        maker.step(kind, *choices)
    return maker.program(outputs)


class _Maker:
    def __init__(self):
        self.b = Builder()
        self.values = {BIG: [self.b.input(BIG) for _ in range(2)], SMALL: [self.b.input(SMALL) for _ in range(2)]}
        self.inputs = [*self.values[BIG], *self.values[SMALL]]
        self.started = []

    def step(self, kind, i, j, k):
        getattr(self, kind)(i, j, ("0", "1")[k % 2])

    def pick(self, shape, i):
        return self.values[shape][-1 - i % len(self.values[shape])]

    def mm(self, i, j, _):
        shape = (BIG, SMALL)[i % 2]
        self.values[shape].append(self.b.mm(self.pick(shape, i // 2), self.pick(BIG, j)))

    def sin(self, i, j, _):
        shape = (BIG, SMALL)[i % 2]
        self.values[shape].append(self.b.sin(self.pick(shape, j)))

    def add(self, i, j, _):
        shape = (BIG, SMALL)[i % 2]
        self.values[shape].append(self.b.add(self.pick(shape, i // 2), self.pick(shape, j)))

    def t(self, i, *_):
        self.values[BIG].append(self.b.op(ATEN.t.default, self.pick(BIG, i)))

    def narrow(self, i, *_):
        self.values[SMALL].append(self.b.op(ATEN.slice.Tensor, self.pick(BIG, i), 0, 0, SMALL[0]))

    def gather(self, i, _, group):
        self.started.append((BIG, self.b.gather(self.pick(SMALL, i), group)))

    def scatter(self, i, _, group):
        self.started.append((SMALL, self.b.scatter(self.pick(BIG, i), group)))

    def reduce(self, i, j, group):
        shape = (BIG, SMALL)[i % 2]
        self.started.append((shape, self.b.reduce(self.pick(shape, j), group)))

    def together(self, i, j, group):
        _, elements = self.b.gather_together([self.pick(SMALL, i), self.pick(SMALL, j)], group)
        self.started += [(BIG, element) for element in elements]

    def wait(self, i, *_):
        if self.started:
            shape, started = self.started.pop(i % len(self.started))
            self.values[shape].append(self.b.wait(started))

    def wait_twice(self, i, *_):
        if self.started:
            shape, started = self.started[i % len(self.started)]
            self.values[shape].append(self.b.wait(started))

    def wait_input(self, i, *_):
        self.b.wait(self.inputs[i % 4])

    def write(self, i, j, _):
        """Write an input, as the end of a functionalized graph does; never one that a collective reads now."""
        if not self.started:
            target = self.inputs[i % 4]
            shape = BIG if target in self.inputs[:2] else SMALL
            self.b.op(ATEN.copy_.default, target, self.b.sin(self.pick(shape, j)))

    def in_place_reduce(self, i, _, group):
        if not self.started:
            self.b.op(C10D.all_reduce_.default, self.inputs[i % 4], "sum", group)

    def dangling(self, i, _, group):
        self.b.reduce(self.pick(BIG, i), group)

    def program(self, chosen):
        for shape, started in self.started:
            self.values[shape].append(self.b.wait(started))
        computed = [value for shape in (BIG, SMALL) for value in self.values[shape]]
        outputs = dict.fromkeys(computed[-1 - i % len(computed)] for i in chosen)
        gm = self.b.module(*outputs)
        return Program(gm, [value / 4 for value in self.b.values()])
