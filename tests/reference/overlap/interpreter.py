"""One process that runs collectives as strictly as a network may: nothing is there before the wait."""

from __future__ import annotations

import torch
import torch.fx

from tests.reference.overlap.graphs import C10D, WORLD


class RaceError(AssertionError):
    """A value was read, or an input written, while a collective was in flight."""


class InFlight(torch.fx.Interpreter):
    """Results hold NaN until they are waited for; inputs must hold at the wait what they held at the start.

    ``issued`` lists the collectives in the order of their starts, as ``(group, op, bytes of the input)``.
    """

    def __init__(self, gm, issued=None, flights=None):
        super().__init__(gm)
        self.issued = [] if issued is None else issued
        self._flights = {} if flights is None else flights

    def call_function(self, target, args, kwargs):
        name = getattr(target, "__name__", "")
        if name == "control_deps":
            return type(self)(args[1], self.issued, self._flights).run(*args[2:])
        if target is C10D.wait_tensor.default:
            return self._wait(*args)
        if getattr(target, "namespace", "") == "_c10d_functional":
            return self._start(target, args)
        return super().call_function(target, args, kwargs)

    def _start(self, target, args):
        name, inputs = target._opname, args[0] if isinstance(args[0], list) else [args[0]]
        self.issued.append((args[-1], name, tuple(value.numel() for value in inputs)))
        values = [_computed(name, value) for value in inputs]
        if name == "all_reduce_":
            return inputs[0].copy_(values[0])
        if any(torch.isnan(value).any() for value in inputs):
            raise RaceError(f"{name} reads a value that is in flight")
        results = [torch.full_like(value, float("nan")) for value in values]
        for result, value, source in zip(results, values, inputs, strict=True):
            self._flights[result.data_ptr()] = (value, source, source.clone())
        return results if isinstance(args[0], list) else results[0]

    def _wait(self, started):
        value, source, before = self._flights.get(started.data_ptr(), (None, None, None))
        if value is not None:
            if not torch.equal(source, before):
                raise RaceError("an input was written while its collective was in flight")
            started.copy_(value)
        return started


def _computed(name, value):
    if name.startswith("all_gather"):
        return torch.cat([value * (1 + 0.1 * rank) for rank in range(WORLD)])
    if name.startswith("reduce_scatter"):
        return value.reshape(WORLD, -1, *value.shape[1:]).sum(0)
    return value * WORLD


def run(gm, inputs):
    """Return what ``gm`` returns and writes, and the collectives in the order of their starts."""
    values = [value.clone() for value in inputs]
    interpreter = InFlight(gm)
    outputs = interpreter.run(*values)
    return [*(value.clone() for value in outputs), *values], interpreter.issued
