"""``full_inductor``: a whole graph, captured without Inductor's decompositions, compiled as the last pass."""

from __future__ import annotations

import contextlib
import sys
import warnings
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, ClassVar

import torch
import torch.fx

from pytest_regional._base.errors import RegionalValueError
from pytest_regional._base.text import unknown_name
from pytest_regional._torch import MissingTorchSymbolError
from pytest_regional._torch.aot_autograd import outputs_before_the_users, user_output_count
from pytest_regional._torch.config import inductor_config
from pytest_regional._torch.dynamo import restart_exceptions
from pytest_regional._torch.fx_graphs import clone_graph, preserve_node_meta, use_boxed_codegen
from pytest_regional._torch.inductor import (
    compile_backward,
    compile_forward,
    inductor_compile,
    inductor_decompositions,
    new_shared_state,
    nodes_are_lowered_by,
    output_code,
    run_joint_graph_passes,
)
from pytest_regional._torch.tracing import (
    ambient_context,
    compile_lock,
    current_fake_mode,
    detect_fake_mode,
    is_fake_tensor,
    new_fake_mode,
    propagate_fake_values,
    tracing,
)
from pytest_regional.reference.effects import Edge
from pytest_regional.reference.full_inductor.collectives import use_functional_collectives
from pytest_regional.reference.full_inductor.decompose import decompose, fake_mode_of
from pytest_regional.reference.full_inductor.errors import FullInductorError, MissingValueError, NumericsWarning
from pytest_regional.reference.full_inductor.outputs import (
    OnlyOutput,
    able_to_run_again,
    check_functional,
    donate_unshared_inputs,
    return_tuple,
    with_outputs_apart,
)
from pytest_regional.reference.ordering.carry_over import compile_in_order
from pytest_regional.reference.ordering.edges import remove_control_deps
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
    node = _last_lowered(error)
    reason = str(error).strip().splitlines() or [""]
    message = f"the {graph} graph did not compile{_where(node)}: {type(error).__name__}: {reason[0]}"
    return FullInductorError(message, graph, None if node is None else node.name)


def _where(node: torch.fx.Node | None) -> str:
    if node is None:
        return ""
    line = source_line([node])
    return f", at node {node.name!r} ({node.target})" + (f", from {line}" if line else "")


def _last_lowered(error: BaseException) -> torch.fx.Node | None:
    """Return the node whose lowering raised: the local ``n`` of the innermost frame that lowers one."""
    found = None
    for cause in _causes(error):
        for traceback in _frames(cause.__traceback__):
            frame = traceback.tb_frame
            if frame.f_code.co_name == nodes_are_lowered_by() and isinstance(frame.f_locals.get("n"), torch.fx.Node):
                found = frame.f_locals["n"]
    return found


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _frames(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


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
        from pytest_regional.reference.pass_uuids import OWN_CODE  # that module imports this one

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
        fake_mode = _fake_mode(gm, example_inputs)
        inputs = _fake_inputs(gm, example_inputs)
        with _tracing_context(fake_mode):
            program = current_program(gm)

            def compile_module(module: torch.fx.GraphModule) -> Callable[..., Any]:
                self._prepare(module)
                with inductor_compile(fake_mode):
                    return _compile_prepared(module, inputs, kind, program)

            is_single = return_tuple(gm)
            compiled = compile_in_order(lambda: _without_order(gm), compile_module)
            program.warn_of_numerics()
        if not isinstance(compiled, output_code()):  # Inductor compiles nothing for a graph without ops
            use_boxed_codegen(gm)
            compiled = gm
        return OnlyOutput(compiled) if is_single else compiled

    def _prepare(self, gm: torch.fx.GraphModule) -> None:
        use_functional_collectives(gm)
        check_functional(gm)
        chosen = {**inductor_decompositions(), **self.decompositions}
        decompose(gm, {op: function for op, function in chosen.items() if function is not None})


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


def _without_order(gm: torch.fx.GraphModule) -> tuple[torch.fx.GraphModule, tuple[Edge, ...]]:
    """Return a copy without order edges, and the edges; Inductor gets them after its own passes."""
    module = clone_graph(gm)
    edges = remove_control_deps(module.graph, bodies=False)
    module.recompile()
    return module, edges


def _compile_prepared(
    gm: torch.fx.GraphModule, inputs: Sequence[Any], kind: str, program: SharedState
) -> Callable[..., Any]:
    compiled: Callable[..., Any]
    if kind == "backward":
        with donate_unshared_inputs(gm) as donated:
            compiled = compile_backward(_after_joint_passes(gm, inputs), inputs, program.state)
        return able_to_run_again(compiled, donated)
    outputs = len(_outputs(gm))
    if kind == "forward":
        gm = _after_joint_passes(gm, inputs)
        outputs = user_outputs(outputs)
    compiled = compile_forward(gm, inputs, program.state, outputs=outputs, is_inference=kind == "inference")
    return compiled


def _after_joint_passes(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> torch.fx.GraphModule:
    return with_outputs_apart(gm, lambda module: run_joint_graph_passes(module, inputs))


def _fake_mode(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
    """Return the fake mode of the graph's values; if there are none, they are made from the inputs."""
    try:
        return fake_mode_of(gm)
    except MissingValueError:
        placeholders = gm.graph.find_nodes(op="placeholder")
        if not placeholders or len(placeholders) != len(example_inputs):
            raise
    fake_mode = detect_fake_mode(example_inputs) or current_fake_mode() or new_fake_mode()
    inputs = [
        fake_mode.from_tensor(value, static_shapes=True)
        if isinstance(value, torch.Tensor) and not is_fake_tensor(value)
        else value
        for value in example_inputs
    ]
    propagate_fake_values(gm, inputs, fake_mode)
    return fake_mode


def _fake_inputs(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> list[Any]:
    """Return the inputs from AOTAutograd, with the strides of saved values; else the graph's own values."""
    placeholders = gm.graph.find_nodes(op="placeholder")
    if len(example_inputs) == len(placeholders) and not any(map(_is_real_tensor, example_inputs)):
        return list(example_inputs)
    return [node.meta.get("val") for node in placeholders]


def _is_real_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not is_fake_tensor(value)


@contextlib.contextmanager
def _tracing_context(fake_mode: Any) -> Iterator[None]:
    """Use the ambient tracing context if it is the graph's."""
    if current_fake_mode() is fake_mode:
        yield
        return
    with tracing(fake_mode):
        yield
