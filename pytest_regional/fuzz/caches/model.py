"""What a cache of whole results has to answer; and the programs, states and process groups that its keys name.

The model knows no compiler: a set of entries that are on disk, a set of keys that this process holds, and what each
event does to them. Imports neither torch nor hypothesis.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from pytest_regional._base.region import region
from pytest_regional._torch.distributed import fake_process_group, group_name
from pytest_regional.fuzz.model.arguments import TensorInput
from pytest_regional.fuzz.model.program import Program, Region, Scope, Step

if TYPE_CHECKING:
    import torch


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
        if self.program not in COLLECTIVES:
            return replace(self, world=0, rank=0, mesh="", group="world")._held
        return self

    @property
    def _held(self) -> Key:
        if not self.dynamic:
            return self
        return replace(self, size=MANY if self.program == ASKS_FOR_SIZE and self.size >= MANY else FEW)

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
            return replace(key, rank=equal_groups(key.rank, key.mesh))
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
    key = _in_world(key)
    if not key.passes:
        key = replace(key, timing="late")
    elif None in key.passes and key.timing == "late":
        key = replace(key, timing="default")
    return key if key.dynamic else replace(key, size=FEW if key.size < MANY else MANY)


def _in_world(key: Key) -> Key:
    """Return ``key`` with the process group that its program needs, and with nothing that it has no use for."""
    if key.program not in COLLECTIVES:
        return replace(key, mesh="", group="world", rank=key.rank if key.world else 0)
    key = replace(key, training=False, dynamic=False, world=key.world or 2)
    if key.program == "gather on mesh":
        return replace(key, world=4, mesh=key.mesh or "2x2", group="world")
    return replace(key, mesh="")


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


def _plain(scope: Scope) -> tuple[Step, ...]:
    return Step("mul", (0, 0), (), (1,), scope), Step("sin", (1,), (), (2,), scope)


def _shorter_region(scope: Scope) -> tuple[Step, ...]:
    return Step("mul", (0, 0), (), (1,), scope), Step("sin", (1,), (), (2,))


def _constants(scope: Scope) -> tuple[Step, ...]:
    """Return steps with a constant tensor and a number that is none of float16's, both outside of the region."""
    return (
        Step("mul", (0, 0), (), (1,), scope),
        Step("literal", (0,), (), (2,)),
        Step("add", (1, 2), (), (3,)),
        Step("add_number", (3,), (("value", 0.3),), (4,)),
    )


def _product(scope: Scope) -> tuple[Step, ...]:
    """Return steps that autocast changes."""
    return Step("mm_transposed", (0, 0), (), (1,), scope), Step("sin", (1,), (), (2,), scope)


def _cut_off(scope: Scope) -> tuple[Step, ...]:
    """Return steps that are others for more than five rows, and a region that is told their number."""
    return (
        Step("mul", (0, 0), (), (1,), scope),
        Step("head", (1,), (), (2,)),
        Step("flatten", (2,), (), (3,), scope),
        Step("sin", (3,), (), (4,), scope),
    )


#: What is compiled, by name, where no process group is needed; the simplest first.
PROGRAMS: Mapping[str, Callable[[Scope], tuple[Step, ...]]] = MappingProxyType(
    {
        "plain": _plain,
        "shorter region": _shorter_region,
        "constants": _constants,
        "product": _product,
        ASKS_FOR_SIZE: _cut_off,
    }
)


# Settings of the process


def _autocast() -> contextlib.AbstractContextManager[Any]:
    switched: contextlib.AbstractContextManager[Any] = torch.autocast("cpu", torch.bfloat16)
    return switched


@contextlib.contextmanager
def _one_thread_more() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def _medium_precision() -> Iterator[None]:
    """Have products of float32 rounded; PyTorch's own setter would leave the precision of each backend behind."""
    backends = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)
    before = torch.get_float32_matmul_precision()
    each = [backend.fp32_precision for backend in backends]
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
        for backend, value in zip(backends, each, strict=True):
            backend.fp32_precision = value


#: What else decides over code, by name: it holds while something compiles and runs.
STATES: Mapping[str, Callable[[], contextlib.AbstractContextManager[Any]]] = MappingProxyType(
    {
        "": contextlib.nullcontext,
        "autocast": _autocast,
        "one thread more": _one_thread_more,
        "deterministic": _deterministic,
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
        ranks: who the own rank is, in words; Dynamo compiles anew where they differ, as a process is never another
            rank, and Dynamo guards none.
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
        if not self.ranks:
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


def equal_groups(rank: int, mesh: str) -> int:
    """Return a number that is the same for ranks whose groups of a mesh's first dimension have one name."""
    return rank % MESHES[mesh][1]


__all__ = ["COLLECTIVES", "GROUPS", "MESHES", "CollectiveProgram", "equal_groups", "process_group"]
