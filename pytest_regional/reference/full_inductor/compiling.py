"""``full_inductor``: a whole graph compiled as the last pass, and checks of its writes, aliasing and donated inputs."""

from __future__ import annotations

import contextlib
import sys
import traceback
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

import torch
import torch.fx

from pytest_regional._base.errors import RegionalValueError
from pytest_regional._base.text import unknown_name
from pytest_regional._torch import MissingTorchSymbolError
from pytest_regional._torch.aot_autograd import (
    backward_keeps_graph,
    buffer_donation,
    donate_nothing,
    outputs_before_the_users,
    user_output_count,
)
from pytest_regional._torch.config import inductor_config
from pytest_regional._torch.dynamo import restart_exceptions
from pytest_regional._torch.fx_graphs import (
    called_attributes,
    clone_graph,
    preserve_node_meta,
    snapshot,
    use_boxed_codegen,
)
from pytest_regional._torch.inductor import (
    compile_backward,
    compile_forward,
    compiled_fx_graph,
    inductor_compile,
    inductor_decompositions,
    new_shared_state,
    nodes_are_lowered_by,
    output_code,
    run_joint_graph_passes,
)
from pytest_regional._torch.operators import is_op_overload, schema_of
from pytest_regional._torch.tracing import (
    ambient_context,
    compile_lock,
    current_fake_mode,
    detect_fake_mode,
    fake_execution,
    is_fake_tensor,
    storage_key,
    tracing,
)
from pytest_regional.reference.effects import Edge, written_arguments
from pytest_regional.reference.full_inductor.decomposing import (
    FullInductorError,
    MissingValueError,
    NumericsWarning,
    decompose,
    fake_mode_of,
    use_functional_collectives,
)
from pytest_regional.reference.ordering.carry_over import compile_in_order
from pytest_regional.reference.ordering.edges import remove_control_deps
from pytest_regional.reference.pass_protocol import OWN_CODE
from pytest_regional.reference.regional_inductor import give_fake_values
from pytest_regional.reference.regions import RegionConfigError, checked_settings, freeze, source_line

_MESSAGE = (
    "full_inductor compiles whole graphs: fused kernels and Inductor's decompositions (and its random numbers, unless "
    "fallback_random is set) differ from eager in the last bits. Measure the difference with assert_parity "
    "before you compare results."
)
_LIBRARIES = tuple(str(Path(file).parent) for file in (torch.__file__, sys.modules["pytest_regional"].__file__ or ""))


@dataclass
class SharedState:
    """The state shared by the graphs of one program.

    Attributes:
        state: State of CUDA graphs that Inductor's compilers of forward and backward share.
    """

    state: Any
    _has_warned: bool = field(default=False)

    def warn_of_numerics(self) -> None:
        """Warn once, at the line of the caller outside of this package and PyTorch."""
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(_MESSAGE, NumericsWarning, stacklevel=_level_of_user() + 1)


_programs: weakref.WeakKeyDictionary[Any, SharedState] = weakref.WeakKeyDictionary()


def current_program(gm: torch.fx.GraphModule) -> SharedState:
    """Return the program of the ambient tracing context, which AOTAutograd shares between both graphs."""
    context = ambient_context()
    if context is None:
        return SharedState(new_shared_state(gm))
    program = _programs.get(context)
    if program is None:
        program = _programs[context] = SharedState(new_shared_state(gm))
    return program


def _level_of_user() -> int:
    """Count the frames from ``warn_of_numerics`` to the user's first one."""
    frame: FrameType | None = sys._getframe(1)
    level = 0
    while frame is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame, level = frame.f_back, level + 1
    return level


def failure(error: Exception, graph: str) -> FullInductorError:
    """Return an error with the graph and node that Inductor failed on, and why."""
    if isinstance(error, FullInductorError):
        return type(error)(f"the {graph} graph cannot be compiled: {error}", graph, error.node)
    # The lowering of this node raised: it is the local ``n`` of the innermost frame that lowers one.
    node: torch.fx.Node | None = None
    for cause in _causes(error):
        for frame, _ in traceback.walk_tb(cause.__traceback__):
            if frame.f_code.co_name == nodes_are_lowered_by() and isinstance(frame.f_locals.get("n"), torch.fx.Node):
                node = frame.f_locals["n"]
    where = ""
    if node is not None:
        line = source_line([node])
        where = f", at node {node.name!r} ({node.target})" + (f", from {line}" if line else "")
    reason = str(error).strip().splitlines() or [""]
    message = f"the {graph} graph did not compile{where}: {type(error).__name__}: {reason[0]}"
    return FullInductorError(message, graph, None if node is None else node.name)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


KINDS = ("forward", "backward", "inference")


@dataclass(frozen=True, eq=False)
class FullInductor:
    """The pass ``full_inductor`` with its own settings.

    Attributes:
        configs: Settings of ``torch._inductor.config``, for these graphs only.
        decompositions: Changes to Inductor's decompositions: an op's decomposition, or None to keep the op. With any,
            the pass has no uuid.
    """

    configs: Mapping[str, Any] = field(default_factory=dict)
    decompositions: Mapping[Any, Callable[..., Any] | None] = field(default_factory=dict)

    name: ClassVar[str] = "full_inductor"
    terminal: ClassVar[bool] = True

    def __post_init__(self) -> None:
        try:
            checked_settings(self.configs, self.name)
        except RegionConfigError as error:
            raise RegionalValueError(f"FullInductor(configs=...): {error}") from None

    def uuid(self) -> Hashable | None:
        """Return name, settings, and versions of our code and of torch, which provides the decompositions."""
        if self.decompositions:
            return None
        settings = tuple(sorted((name, freeze(value)) for name, value in self.configs.items()))
        return self.name, OWN_CODE, torch.__version__, settings

    def __call__(
        self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any] = (), *, graph: str | None = None
    ) -> Callable[..., Any]:
        """Compile ``gm``, which is not changed.

        Args:
            gm: An ATen graph in functional form, as from AOTAutograd.
            example_inputs: Its inputs, real or fake; not needed if the graph has fake values.
            graph: ``forward``, ``backward`` or ``inference``; detected if omitted.

        Returns:
            A function of one list of inputs, which it clears: Inductor's ``CompiledFxGraph``, which caches can save.

        Raises:
            FullInductorError: Inductor failed; the message says where, the cause is chained.
        """
        with compile_lock(), preserve_node_meta(enable=False), inductor_config().patch(dict(self.configs)):
            kind = graph or kind_of(gm)
            if kind not in KINDS:
                raise FullInductorError(unknown_name("kind of graph", kind, KINDS), graph)
            try:
                return self._compile(gm, example_inputs, kind)
            except Exception as error:
                if isinstance(error, (*restart_exceptions(), MissingTorchSymbolError)):
                    raise
                raise failure(error, kind) from error

    def _compile(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], kind: str) -> Callable[..., Any]:
        gm = clone_graph(gm)
        placeholders = gm.graph.find_nodes(op="placeholder")
        try:
            fake_mode = fake_mode_of(gm)
        except MissingValueError:
            if not placeholders or len(placeholders) != len(example_inputs):
                raise
            fake_mode = give_fake_values(gm, example_inputs)
        inputs = list(example_inputs)  # from AOTAutograd, with the strides of saved values; else the graph's own values
        if len(inputs) != len(placeholders) or any(
            isinstance(value, torch.Tensor) and not is_fake_tensor(value) for value in inputs
        ):
            inputs = [node.meta.get("val") for node in placeholders]
        with contextlib.nullcontext() if current_fake_mode() is fake_mode else tracing(fake_mode):
            program = current_program(gm)
            output = gm.graph.output_node()
            (result,) = output.args
            is_single = isinstance(result, torch.fx.Node)
            if not isinstance(result, (torch.fx.Node, tuple, list)):
                raise FullInductorError(
                    f"the graph returns a {type(result).__name__}: let it return a tuple, as AOTAutograd's graphs do."
                )
            if is_single:
                output.args = ((result,),)
                gm.recompile()

            def without_order() -> tuple[torch.fx.GraphModule, tuple[Edge, ...]]:
                """Inductor gets the order edges after its own passes."""
                module = clone_graph(gm)
                edges = remove_control_deps(module.graph, bodies=False)
                module.recompile()
                return module, edges

            def compile_module(module: torch.fx.GraphModule) -> Callable[..., Any]:
                use_functional_collectives(module)
                check_functional(module)
                chosen = {**inductor_decompositions(), **self.decompositions}
                decompose(module, {op: function for op, function in chosen.items() if function is not None})
                with inductor_compile(fake_mode):
                    return _compile_prepared(module, inputs, kind, program)

            compiled = compile_in_order(without_order, compile_module)
            program.warn_of_numerics()
        if not isinstance(compiled, output_code()):  # Inductor compiles nothing for a graph without ops
            use_boxed_codegen(gm)
            compiled = gm
        return OnlyOutput(compiled) if is_single else compiled


#: The pass without settings: ``passes=[..., full_inductor]``, or called directly with a graph.
full_inductor = FullInductor()


def kind_of(gm: torch.fx.GraphModule) -> str:
    """Return AOTAutograd's kind of a graph: a backward has tangents, a forward more outputs than the user's."""
    if any("tangents" in node.name for node in gm.graph.find_nodes(op="placeholder")):
        return "backward"
    outputs = len(_outputs(gm))
    return "forward" if outputs_before_the_users() + user_outputs(outputs) < outputs else "inference"


def user_outputs(outputs: int) -> int:
    """Return how many of a forward graph's ``outputs`` are the user's, after the mutated inputs."""
    behind = outputs - outputs_before_the_users()
    users = user_output_count()
    return behind if users is None else min(behind, users)


def _outputs(gm: torch.fx.GraphModule) -> Sequence[Any]:
    outputs = gm.graph.output_node().args[0]
    return outputs if isinstance(outputs, (list, tuple)) else (outputs,)


def _compile_prepared(
    gm: torch.fx.GraphModule, inputs: Sequence[Any], kind: str, program: SharedState
) -> Callable[..., Any]:
    outputs = len(_outputs(gm))
    compiled: Callable[..., Any]
    if kind == "backward":
        # Donate only inputs that no other input is a view of. AOTAutograd checks for views among the forward's inputs
        # and outputs, but not among saved values. Without Inductor's passes on the joint graph, a value and its
        # ``detach`` are both saved: overwriting one of them overwrites both.
        keys = [storage_key(node.meta.get("val")) for node in gm.graph.find_nodes(op="placeholder")]
        counts = Counter(keys)
        with buffer_donation(lambda index: counts[keys[index]] == 1) as donated:
            compiled = compile_backward(_after_joint_passes(gm, inputs), inputs, program.state)
        return able_to_run_again(compiled, donated)
    if kind == "forward":
        gm = _after_joint_passes(gm, inputs)
        outputs = user_outputs(outputs)
    compiled = compile_forward(gm, inputs, program.state, outputs=outputs, is_inference=kind == "inference")
    return compiled


def _after_joint_passes(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> torch.fx.GraphModule:
    """Run Inductor's passes; outputs share memory with each other or with inputs only if they did before.

    The passes merge ``y`` and ``y * 1``. If both are saved for a backward that may overwrite its inputs, that would
    corrupt the other, or an input of the user's.
    """
    # A node's own value is not reliable afterwards: Inductor gives a node the metadata of the node it replaces.
    storages = {node: _storage(node) for node in gm.graph.nodes}
    before = [_storage(output) for output in _outputs(gm)]
    gm = run_joint_graph_passes(gm, inputs)
    owners = {storage: storage for storage in storages.values()}
    output = gm.graph.output_node()
    apart = []
    for result, key in zip(_outputs(gm), before, strict=True):
        now = storages.get(result, _storage(result)) if isinstance(result, torch.fx.Node) else None
        apart.append(result)
        if now is not None and owners.setdefault(now, key) != key:
            value = result.meta["val"]
            with gm.graph.inserting_before(output):
                apart[-1] = gm.graph.call_function(torch.ops.aten.clone.default, (result,))
            with fake_execution(detect_fake_mode([value])):
                apart[-1].meta["val"] = snapshot(torch.ops.aten.clone.default(value))
    output.args = (tuple(apart),)
    return gm


def _storage(value: torch.fx.node.Argument) -> int | None:
    return storage_key(value.meta.get("val")) if isinstance(value, torch.fx.Node) else None


_EPILOGUE = ("aten::copy_", "aten::set_", "inductor::resize_storage_bytes_")
# These write to buffers passed for that purpose, and Inductor lowers them as such.
_LOWERED_AS_WRITES = ("_c10d_functional", "symm_mem")


def check_functional(gm: torch.fx.GraphModule) -> None:
    """Check that ``gm`` and the bodies it calls write only to inputs of ``gm``, after the last read.

    Raises:
        FullInductorError: naming the first node that does.
    """

    def is_epilogue(node: torch.fx.Node) -> bool:
        return is_op_overload(node.target) and schema_of(node.target).name in _EPILOGUE

    last_read: dict[int | None, int] = {}  # of each storage, except by the graph's end
    for position, node in enumerate(gm.graph.nodes):
        for source in node.all_input_nodes if node.op != "output" and not is_epilogue(node) else ():
            last_read[storage_key(source.meta.get("val"))] = position
    last_read.pop(None, None)
    for position, node in enumerate(gm.graph.nodes):
        for target in _written(node):
            at_the_end = is_epilogue(node) and target.op == "placeholder"
            if not at_the_end or last_read.get(storage_key(target.meta.get("val")), -1) > position:
                raise FullInductorError(_complaint(node, target, at_the_end), node=node.name)
    done: set[int] = set()
    bodies = [*called_attributes(gm).values()]
    while bodies:
        body = bodies.pop(0)
        if id(body) not in done:
            done.add(id(body))
            for node in body.graph.nodes:
                for target in _written(node):
                    raise FullInductorError(f"in a body: {_complaint(node, target, False)}", node=node.name)
            bodies = [*called_attributes(body).values(), *bodies]


def _written(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    if getattr(node.target, "namespace", None) not in _LOWERED_AS_WRITES:
        yield from written_arguments(node)


def _complaint(node: torch.fx.Node, target: torch.fx.Node, is_too_early: bool) -> str:
    where = "and it is read again later" if is_too_early else "which is not an input written at the end"
    return (
        f"node {node.name!r} ({node.target}) writes to {target.name!r}, {where}: Inductor takes whole graphs in "
        f"functional form. Capture the graph with AOTAutograd, or functionalize it (torch.func.functionalize)."
    )


def able_to_run_again(compiled: Callable[..., Any], donated: Sequence[int]) -> Callable[..., Any]:
    """Make a compiled backward keep its donated inputs if its graph is kept.

    AOTAutograd decides when a backward first runs, and refuses to keep the graph later. A backward compiled ahead must
    be correct for both.
    """
    if isinstance(compiled, compiled_fx_graph()):
        compiled.__class__ = RunsAgain
        compiled.donated = tuple(donated)
        donate_nothing()  # AOTAutograd need not check it
    return compiled


class RunsAgain(compiled_fx_graph()):  # type: ignore[misc]
    """Inductor's backward, which overwrites copies if the graph is kept; otherwise unchanged.

    Attributes:
        donated: the indices of the inputs that the generated code may write into.
    """

    donated: tuple[int, ...]

    def __call__(self, inputs: list[Any]) -> Any:
        """Run the backward, which clears ``inputs``."""
        if self.donated and backward_keeps_graph():
            for index in self.donated:
                inputs[index] = _copy(inputs[index])
        return super().__call__(inputs)


def _copy(value: Any) -> Any:
    """Copy a tensor with its memory layout, including gaps and overlaps."""
    if not isinstance(value, torch.Tensor):
        return value
    memory = value.untyped_storage().clone()
    return value.new_empty(0).set_(memory, value.storage_offset(), value.size(), value.stride())


@dataclass(frozen=True)
class OnlyOutput:
    """Returns the single value of a compiled function's tuple; takes and clears one list of inputs."""

    compiled: Callable[..., Any]
    _boxed_call: ClassVar[bool] = True

    def __call__(self, inputs: list[Any]) -> Any:
        """Run the compiled graph."""
        (result,) = self.compiled(inputs)
        return result
