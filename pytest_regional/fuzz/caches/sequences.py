"""Sequences of cache operations as plain data, and the model that says what a cache of whole results has to answer.

The model knows no compiler: a set of entries that are on disk, a set of keys that this process holds, and what each
event does to them. A sequence is executed event by event: compiles, restarts, new processes, damaged files. After each
compile the counters must say what :class:`CacheModel` predicts, and the values must be those of eager.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from pytest_regional._base.cache_keys import KEYS
from pytest_regional._base.region import region
from pytest_regional._torch.config import recompiles_allowed
from pytest_regional._torch.distributed import fake_process_group, group_name
from pytest_regional.fuzz.model.arguments import TensorInput
from pytest_regional.fuzz.model.program import Program, Region, Scope, Step
from pytest_regional.fuzz.oracles import OracleViolationError
from pytest_regional.fuzz.settings import keeping_whole_results
from pytest_regional.harness.pre_grad_passes import counting_pass
from pytest_regional.harness.raised import message_of

if TYPE_CHECKING:
    from pytest_regional.harness.regional import Regional


Answer = Literal["memory", "hit", "miss", "either"]
"""``either``: a hit or a miss, both are right."""

#: Up to ``FEW`` rows, and from ``MANY`` on, the program that asks for its size is one graph.
FEW, MANY = 3, 7
ASKS_FOR_SIZE = "cut off"


@dataclass(frozen=True)
class Key:
    """Everything that makes two compiles different ones.

    Attributes:
        program: which of the machine's programs.
        region: the id of its region; None leaves its ops unannotated.
        fusion: the ``max_fusion_size`` of its region; None leaves the setting out.
        passes: uuids of its pre-grad passes in order, which change nothing; None for a pass that has none.
        timing: when they run.
        size: of the input's first dimension.
        dynamic: whether sizes are symbols; then one graph serves several.
        training: whether gradients are asked for.
        state: name of a setting of the process.
        world: how many ranks there are; 0 for no process group.
        rank: the own one.
        mesh: name of the device mesh on which a program gathers.
        group: which process group a program's collective uses.
    """

    program: str = "plain"
    region: str | None = "a"
    fusion: int | None = None
    passes: tuple[str | None, ...] = ()
    timing: str = "late"
    size: int = FEW
    dynamic: bool = False
    training: bool = False
    state: str = ""
    world: int = 0
    rank: int = 0
    mesh: str = ""
    group: str = "world"

    def __str__(self) -> str:
        parts = [self.program, f"region {self.region!r}", f"size {self.size}"]
        parts += [f"max_fusion_size {self.fusion}"] if self.fusion is not None else []
        parts += [f"passes {self.passes} {self.timing}"] if self.passes else []
        parts += ["dynamic"] if self.dynamic else []
        parts += ["training"] if self.training else []
        parts += [self.state] if self.state else []
        parts += [f"rank {self.rank} of {self.world}"] if self.world else []
        parts += [f"mesh {self.mesh}"] if self.mesh else []
        parts += ["in a second process group"] if self.group == "other" else []
        return ", ".join(parts)

    @property
    def early(self) -> bool:
        """Whether the passes run before the lookup: as asked, or because the key cannot say what they would do."""
        return bool(self.passes) and (self.timing == "early" or None in self.passes)

    @property
    def held(self) -> Key:
        """What a process holds compiled: with symbols it serves all sizes that its guards allow.

        A program without collectives is the same in any process group.
        """
        if self.program in COLLECTIVES:
            return self
        size = self.size
        if self.dynamic:
            size = MANY if self.program == ASKS_FOR_SIZE and self.size >= MANY else FEW
        return replace(self, size=size, world=0, rank=0, mesh="", group="world")

    @property
    def entry(self) -> Key:
        """What is stored: passes that ran before the lookup are no part of it, and these changed nothing.

        Of process groups it has what the graph says: name and size of the group of a collective, the rank where the
        program reads it.
        """
        key = replace(self.held, passes=() if self.early else self.passes, timing="late")
        if key.program == "reads rank":
            return replace(key, world=0, group="world")
        if key.mesh:
            # Ranks are alike whose groups of the mesh's first dimension have one name.
            return replace(key, rank=key.rank % MESHES[key.mesh][1])
        return replace(key, rank=0)

    @property
    def named(self) -> Key:
        """What a cache may take for the same: a graph may have the name of a process group alone, and not its size."""
        return replace(self.entry, world=2) if self.program == "all reduce" else self.entry

    def runs(self, lookups: int, misses: int) -> int:
        """Return how often passes are to run."""
        return len(self.passes) * (lookups if self.early else misses)


def canonical(key: Key) -> Key:
    """Return the key of the same compile: what says nothing where something else is missing is left out."""
    if key.region is None:
        # Settings go with the annotation, and so does where its boundary stood.
        key = replace(key, fusion=None, program="plain" if key.program == "shorter region" else key.program)
    # With the process group that its program needs, and with nothing that it has no use for.
    if key.program not in COLLECTIVES:
        key = replace(key, mesh="", group="world", rank=key.rank if key.world else 0)
    else:
        key = replace(key, training=False, dynamic=False, world=key.world or 2)
        if key.program == "gather on mesh":
            key = replace(key, world=4, mesh=key.mesh or "2x2", group="world")
        else:
            key = replace(key, mesh="")
    if not key.passes:
        key = replace(key, timing="late")
    elif None in key.passes and key.timing == "late":
        key = replace(key, timing="default")
    return key if key.dynamic else replace(key, size=FEW if key.size < MANY else MANY)


@dataclass
class CacheModel:
    """What is where.

    Attributes:
        stored: entries that are on disk.
        doubtful: entries whose files may be damaged: hit or miss, both are right, wrong values never.
        live: keys that this process holds compiled.
    """

    stored: set[Key] = field(default_factory=set)
    doubtful: set[Key] = field(default_factory=set)
    live: set[Key] = field(default_factory=set)

    def answer(self, key: Key) -> Answer:
        """Return what a compile of ``key`` in this process has to find."""
        return "memory" if key.held in self.live else self.answer_elsewhere(key)

    def answer_elsewhere(self, key: Key) -> Answer:
        """Return what a compile of ``key`` in another process has to find."""
        if key.entry in self.doubtful:
            return "either"
        if key.entry in self.stored:
            return "hit"
        return "either" if key.named in {other.named for other in self.stored} else "miss"

    def ran(self, key: Key) -> None:
        """Note a compile in this process; one that was compiled already touches no file."""
        if key.held not in self.live:
            self.live.add(key.held)
            self.ran_elsewhere(key)

    def ran_elsewhere(self, key: Key) -> None:
        """Note a compile in another process, which stores what it did not find."""
        self.stored.add(key.entry)
        self.doubtful.discard(key.entry)

    def restarted(self) -> None:
        """Forget what this process holds."""
        self.live.clear()

    def damaged(self) -> None:
        """Note that some file is damaged."""
        self.doubtful |= self.stored

    def cleared(self) -> None:
        """Note that all files are gone."""
        self.stored.clear()
        self.doubtful.clear()


AnyProgram: TypeAlias = "Program | CollectiveProgram"


def program_of(key: Key, group: tuple[str, int] = ("", 1)) -> AnyProgram:
    """Return the program that ``key`` names; ``group`` is name and size of the process group that it is to use."""
    configs = () if key.fusion is None else (("max_fusion_size", key.fusion),)
    if key.program in COLLECTIVES:
        ranks = f"{key.rank} of {key.world} {key.mesh} {key.group}"
        return CollectiveProgram(key.program, key.region, configs, key.size, *group, ranks)
    scope = () if key.region is None else (Region(key.region, configs),)
    steps = PROGRAMS[key.program](scope)
    argument = TensorInput((key.size, 4), requires_grad=key.training)
    return Program((argument,), steps, steps[-1].results, training=key.training, dynamic=key.dynamic)


#: What is compiled, by name, where no process group is needed; the simplest first.
PROGRAMS: Mapping[str, Callable[[Scope], tuple[Step, ...]]] = MappingProxyType(
    {
        "plain": lambda scope: (Step("mul", (0, 0), (), (1,), scope), Step("sin", (1,), (), (2,), scope)),
        "shorter region": lambda scope: (Step("mul", (0, 0), (), (1,), scope), Step("sin", (1,), (), (2,))),
        # A constant tensor, and a number that is none of float16's, both outside of the region.
        "constants": lambda scope: (
            Step("mul", (0, 0), (), (1,), scope),
            Step("literal", (0,), (), (2,)),
            Step("add", (1, 2), (), (3,)),
            Step("add_number", (3,), (("value", 0.3),), (4,)),
        ),
        # Autocast changes it.
        "product": lambda scope: (
            Step("mm_transposed", (0, 0), (), (1,), scope),
            Step("sin", (1,), (), (2,), scope),
        ),
        # The steps are others for more than five rows, and a region is told their number.
        ASKS_FOR_SIZE: lambda scope: (
            Step("mul", (0, 0), (), (1,), scope),
            Step("head", (1,), (), (2,)),
            Step("flatten", (2,), (), (3,), scope),
            Step("sin", (3,), (), (4,), scope),
        ),
    }
)


# Settings of the process


@contextlib.contextmanager
def _switched(switch: Callable[[Any], Any], value: Any, before: Any) -> Iterator[None]:
    switch(value)
    try:
        yield
    finally:
        switch(before)


@contextlib.contextmanager
def _medium_precision() -> Iterator[None]:
    """Have products of float32 rounded; PyTorch's own setter would leave the precision of each backend behind."""
    backends = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)
    each = [backend.fp32_precision for backend in backends]
    try:
        with _switched(torch.set_float32_matmul_precision, "medium", torch.get_float32_matmul_precision()):
            yield
    finally:
        for backend, value in zip(backends, each, strict=True):
            backend.fp32_precision = value


#: What else decides over code, by name: it holds while something compiles and runs.
STATES: Mapping[str, Callable[[], contextlib.AbstractContextManager[Any]]] = MappingProxyType(
    {
        "": contextlib.nullcontext,
        "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
        "one thread more": lambda: _switched(
            torch.set_num_threads, torch.get_num_threads() + 1, torch.get_num_threads()
        ),
        "deterministic": lambda: _switched(torch.use_deterministic_algorithms, True, False),
        "medium precision": _medium_precision,
    }
)


#: What is compiled where there are process groups, by name, and what of them its graph depends on.
COLLECTIVES = ("all reduce", "all gather", "gather on mesh", "reads rank")

#: Shapes of device meshes of four ranks, by name.
MESHES = {"2x2": (2, 2), "4x1": (4, 1)}

#: Process groups of all ranks: the one that there is from the start, and a second one.
GROUPS = ("world", "other")


@dataclass(frozen=True)
class CollectiveProgram:
    """A program of two ops in a region, and a collective or the rank between them.

    Attributes:
        kind: one of ``COLLECTIVES``.
        region: the id of the region; None leaves its ops unannotated.
        configs: of the region.
        rows: the size of the input's first dimension.
        group: name of the process group.
        size: of the process group.
        ranks: which rank this process is, in words. Dynamo has no guard on it, since the rank of a process never
            changes; the function compiles again where it differs.
    """

    kind: str
    region: str | None
    configs: tuple[tuple[str, Any], ...]
    rows: int
    group: str
    size: int
    ranks: str
    training: bool = False

    def inputs(self, device: str, seed: int) -> tuple[torch.Tensor, ...]:
        """Return the input, drawn from ``seed``."""
        generator = torch.Generator().manual_seed(seed)
        return (torch.randn(self.rows, 4, generator=generator).to(device),)

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        """Run it."""
        collectives = torch.ops._c10d_functional
        if not self.ranks:  # what is read, Dynamo guards
            raise ValueError("a collective needs ranks")
        marked = contextlib.nullcontext() if self.region is None else region(self.region, configs=dict(self.configs))
        with marked:
            y = (x * x).sin()
        if self.kind == "all reduce":
            y = collectives.wait_tensor(collectives.all_reduce(y, "sum", self.group))
        elif self.kind == "reads rank":
            y = y * (dist.get_rank() + 1)
        else:
            y = y.cos() if self.kind == "gather on mesh" else y  # the names of its groups are those of others
            y = collectives.wait_tensor(collectives.all_gather_into_tensor(y, self.size, self.group))
        return (y + 1,)


@contextlib.contextmanager
def process_group(world: int, rank: int, mesh: str, group: str) -> Iterator[tuple[str, int]]:
    """Be a rank of a fake world while the context lasts; yields name and size of the group that programs use.

    Args:
        world: how many ranks there are; 0 for no process group.
        rank: the own one.
        mesh: name of a mesh, whose first dimension is the group; empty for none.
        group: one of ``GROUPS``, where there is no mesh.
    """
    if not world:
        yield "", 1
        return

    with fake_process_group(world, rank) as everybody:
        if mesh:
            chosen = init_device_mesh("cpu", MESHES[mesh], mesh_dim_names=("rows", "columns")).get_group("rows")
        else:
            chosen = dist.new_group(list(range(world))) if group == "other" else everybody
        yield group_name(chosen), chosen.size()


# Events


@dataclass(frozen=True)
class Compile:
    """Something is compiled and run twice."""

    key: Key


@dataclass(frozen=True)
class NewProcess:
    """Something is compiled and run twice in another process, which shares the folder."""

    key: Key


@dataclass(frozen=True)
class Restart:
    """What this process holds is forgotten."""


@dataclass(frozen=True)
class Damage:
    """One of the cache's files, by its place in their order, is damaged in one of the ways of :data:`DAMAGES`."""

    number: int
    kind: str


@dataclass(frozen=True)
class Clear:
    """The cache is deleted, and a new process begins."""


Event: TypeAlias = "Compile | NewProcess | Restart | Damage | Clear"

#: Suffixes of code that Inductor and Triton generate and build.
_CODE = frozenset(
    (".py", ".cpp", ".h", ".so", ".o", ".cubin", ".ptx", ".json", ".ttir", ".ttgir", ".llir", ".source", ".lock")
)

#: What a full disk or a crash does to a file.
DAMAGES: Mapping[str, Callable[[bytes], bytes]] = {
    "a flipped bit": lambda data: bytes(
        byte ^ 16 if place == len(data) // 2 else byte for place, byte in enumerate(data)
    ),
    "its second half lost": lambda data: data[: len(data) // 2],
    "everything lost": lambda data: b"",
}


class Executor:
    """Executes events on the backend under test, beginning with empty caches.

    Args:
        regional: the harness.
        mode: the mode that this process is in, and that new ones are to be in.

    Attributes:
        executed: the events so far; where one breaks the model it is the last.
    """

    def __init__(self, regional: Regional, mode: str) -> None:
        self.regional, self.model, self._mode = regional, CacheModel(), mode
        self.executed: list[Event] = []
        self._programs: dict[Key, AnyProgram] = {}
        self._passes: dict[tuple[str | None, ...], list[Any]] = {}
        regional._reset()

    def execute(self, event: Event) -> None:
        """Execute one event.

        Raises:
            OracleViolationError: a compile that breaks the model.
        """
        self.executed.append(event)
        match event:
            case Compile(key):
                self._compile(key)
            case NewProcess(key):
                there = self.regional.in_new_process(counters_of, key, self._mode)
                _check(key, self.model.answer_elsewhere(key), there.value)
                self.model.ran_elsewhere(key)
            case Restart():
                self.regional.restart()
                self.model.restarted()
            case Damage(number, kind):
                self._damage(number, kind)
            case Clear():
                self.regional._reset()
                self.model.restarted()
                self.model.cleared()

    def _compile(self, key: Key) -> None:
        expected = self.model.answer(key)
        passes = self._passes.setdefault(key.passes, passes_of(key))
        with _process_group(key) as group:
            # Dynamo tells functions and passes apart by identity: the same ones are compiled already.
            program = self._programs.setdefault(key.held, program_of(key, group))
            _check(key, expected, moved_by(self.regional, program, key, passes))
        self.model.ran(key)

    def _damage(self, number: int, kind: str) -> None:
        files = sorted(path for path in self.regional.folder.rglob("*") if path.is_file() and path.parent.name != KEYS)
        if not self.regional.supports("pytorch_outer_cache"):
            # Inductor does not look at what its code files hold (docs/findings/emptied_code_file.py), and is under
            # every backend; what a backend keeps itself is what it answers for.
            files = [path for path in files if path.suffix not in _CODE]
        if files:
            path = files[number % len(files)]
            path.write_bytes(DAMAGES[kind](path.read_bytes()))
            self.model.damaged()


def run_sequence(regional: Regional, events: Iterable[Event], *, mode: str = "interpret") -> None:
    """Execute ``events``, beginning with empty caches.

    Args:
        regional: the harness.
        events: what happens, in order.
        mode: the mode that they are executed in.

    Raises:
        OracleViolationError: the first event that breaks the model.
    """
    # One function may be compiled at each event, with other passes or under other settings.
    with keeping_whole_results(regional, mode), recompiles_allowed(1000):
        executor = Executor(regional, mode)
        for event in events:
            executor.execute(event)


def _check(key: Key, expected: Answer, moved: Mapping[str, int]) -> None:
    problem = disagreement(key, expected, moved)
    if problem:
        counted = ", ".join(f"{moved[name]} {name}" for name in _CHECKED if moved[name])
        detail = f"compile of {key}: {problem} ({counted or 'no counter moved'})"
        raise OracleViolationError("caches", "restart", detail, origin=problem)


def _process_group(key: Key) -> contextlib.AbstractContextManager[tuple[str, int]]:
    return process_group(key.world, key.rank, key.mesh, key.group)


_CHECKED = (
    "cache_hits",
    "cache_misses",
    "cache_bypasses",
    "region_compiles",
    "pre_grad_calls",
    "region_pre_grad_calls",
    "traces",
)


def moved_by(regional: Regional, program: AnyProgram, key: Key, passes: Sequence[Any]) -> dict[str, int]:
    """Compile and run ``program`` as ``key`` says, compare with eager, and return the counters that moved.

    Raises:
        OracleViolationError: it fails, or the values are not eager's.
    """
    mark = regional.observer.log.mark()
    options: dict[str, Any] = {"dynamic": key.dynamic}
    if passes:
        options |= {"pre_grad_pass": passes if len(passes) > 1 else passes[0], "pre_grad_pass_timing": key.timing}
    with warnings.catch_warnings(), STATES[key.state]():
        # A damaged entry, and a pass without a uuid, are told by a warning; here they are expected.
        warnings.simplefilter("ignore")
        compiled = regional.compile(program, **options)
        for seed in (0, 1):
            _compare(key, program, compiled, seed)
    return dict(regional.observer.log.counters(mark))


def _compare(key: Key, held: AnyProgram, compiled: Any, seed: int) -> None:
    # The one that is held may be of another size.
    program = held if isinstance(held, CollectiveProgram) else program_of(key)
    ours, theirs = program.inputs("cpu", seed), program.inputs("cpu", seed)
    expected = _run(program, program, theirs)
    try:
        found = _run(program, compiled, ours)
    except Exception as error:
        raise OracleViolationError(
            "caches", "run", f"eager runs {key}: {message_of(error)}", origin=type(error).__name__
        ) from error
    for one, other in zip(found, expected, strict=True):
        tolerance = 1e-5 if other.dtype == torch.float32 else 2e-2
        if one.dtype != other.dtype or one.shape != other.shape or not torch.allclose(one, other, tolerance, tolerance):
            raise OracleViolationError(
                "caches", "run", f"compile of {key}: the values are not eager's", origin="values"
            )


def _run(program: AnyProgram, function: Any, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    if not program.training:
        with torch.no_grad():
            return [function(*inputs)[0]]
    output = function(*inputs)[0]
    return [output.detach(), *torch.autograd.grad(output.float().sum(), list(inputs))]


def counters_of(regional: Regional, key: Key, mode: str) -> dict[str, int]:
    """Compile and run the program of ``key`` in this process; for a new one."""
    with keeping_whole_results(regional, mode), _process_group(key) as group:
        return moved_by(regional, program_of(key, group), key, passes_of(key))


def passes_of(key: Key) -> list[Any]:
    """Return the passes that ``key`` names, which count their runs."""
    return [counting_pass(uuid=uuid) for uuid in key.passes]


#: Hits and misses that may be, by what the model says.
_LOOKUPS: Mapping[Answer, Sequence[tuple[int, int]]] = {
    "memory": [(0, 0)],
    "hit": [(1, 0)],
    "miss": [(0, 1)],
    "either": [(1, 0), (0, 1)],
}


def disagreement(key: Key, expected: Answer, moved: Mapping[str, int]) -> str:
    """Return what the counters say that they should not; empty where they agree with the model."""
    lookups = moved["cache_hits"], moved["cache_misses"]
    if moved["cache_bypasses"]:
        # Some caches count what they cannot read among what they pass by.
        return "" if expected == "either" else "the cache was bypassed"
    allowed = _LOOKUPS[expected]
    if lookups not in allowed:
        return f"{_said(lookups)} where the model says {expected}"
    if not lookups[1] and moved["region_compiles"]:
        return "code was generated although the result was there"
    runs = key.runs(sum(lookups), lookups[1])
    if moved["pre_grad_calls"] != runs:
        return f"passes ran too {'often' if moved['pre_grad_calls'] > runs else 'rarely'} on {_said(lookups)}"
    if moved["region_pre_grad_calls"]:
        return "passes ran on regions"
    return ""


def _said(lookups: tuple[int, int]) -> str:
    return {(0, 0): "no lookup", (1, 0): "a hit", (0, 1): "a miss"}.get(lookups, "several lookups")
