"""Modes: how much of a compile really happens while a program is checked; and settings of the compiler: a table.

A program names each setting as ``layer.name``: ``inductor.max_fusion_size``, ``functorch.activation_memory_budget``,
``dynamo.assume_static_by_default``. ``docs/fuzzing-settings.md`` says why which are in the table, and which are not.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from pytest_regional._base.errors import RegionalValueError
from pytest_regional._base.text import unknown_name
from pytest_regional._torch.config import (
    DYNAMO,
    FUNCTORCH,
    INDUCTOR,
    config_names,
    forced_autograd_cache,
    patched_config,
)
from pytest_regional._torch.dynamo import guards_untimed
from pytest_regional._torch.inductor import interpreting_regions

if TYPE_CHECKING:
    from pytest_regional.harness.regional import Regional

#: ``interpret``: everything up to Inductor (Dynamo, AOTAutograd, partitions, passes, the backend's caches); the
#: subgraphs are interpreted. ``graph``: the same without Dynamo, for the programs whose graph can be written down
#: (:mod:`pytest_regional.fuzz.graph_capture`). ``aten``: without AOTAutograd, too; the backend's graph pass gets ATen
#: graphs (:class:`pytest_regional.fuzz.oracles.example_run.AtenRun`). ``emulated``: Triton code for an emulated GPU.
#: ``native``: C++ code, or a GPU.
MODES = ("aten", "graph", "interpret", "emulated", "native")

#: Modes in which a program is compiled: it trains, is called again, and caches answer.
COMPILED = ("graph", "interpret", "emulated", "native")

#: Modes whose graphs do not come from Dynamo: what only such a mode shows is no finding.
WITHOUT_DYNAMO = ("aten", "graph")

#: Modes that generate no code.
INTERPRETED = ("aten", "graph", "interpret")


def mode_of(device: str) -> str:
    """Return the mode that a device under test takes unless told otherwise."""
    return "emulated" if device.startswith("cuda-emulated") else "native"


def nearest_mode(regional: Regional, name: str) -> str:
    """Return the mode ``name``, or where device or backend cannot take it, the one of the device.

    Raises:
        RegionalValueError: there is no such mode.
    """
    try:
        _check(regional, name)
    except RegionalValueError:
        if name not in MODES:
            raise
        return mode_of(regional.device_under_test.name)
    return name


@contextlib.contextmanager
def in_mode(regional: Regional, name: str) -> Iterator[None]:
    """Compile in a mode while the context lasts.

    Raises:
        RegionalValueError: there is no such mode, or this harness cannot take it; says why.
    """
    _check(regional, name)
    interpreting = interpreting_regions() if name in INTERPRETED else contextlib.nullcontext()
    with guards_untimed(), interpreting:
        yield


@contextlib.contextmanager
def keeping_whole_results(regional: Regional, name: str) -> Iterator[None]:
    """Compile in a mode while the context lasts, and have whole results kept.

    A backend without an outer cache has PyTorch's, which keeps whole results only under ``force_autograd_cache``.

    Raises:
        RegionalValueError: as :func:`in_mode`.
    """
    own = regional.supports("outer_cache")
    with in_mode(regional, name), contextlib.nullcontext() if own else forced_autograd_cache():
        yield


def _check(regional: Regional, name: str) -> None:
    if name not in MODES:
        raise RegionalValueError(unknown_name("mode", name, MODES))
    device = regional.device_under_test.name
    if name not in INTERPRETED and name != mode_of(device):
        raise RegionalValueError(f"mode {name!r} does not run on device {device!r}, whose mode is {mode_of(device)!r}")
    if name in INTERPRETED and mode_of(device) == "emulated":
        raise RegionalValueError(f"mode {name!r} generates no code, so it has no use for device {device!r}: use 'cpu'")
    support = regional.supports("regions")
    if name in INTERPRETED and not support:
        raise RegionalValueError(
            f"mode {name!r} interprets what backend {regional.backend!r} hands to Inductor region by region, and it "
            f"disclaims regions ({support.reason}): use another mode"
        )
    if name == "aten" and regional._spec.graph_pass is None:
        raise RegionalValueError(
            f"mode 'aten' hands graphs to the graph pass of a backend, and the BackendSpec of {regional.backend!r} "
            f"gives none (graph_pass): use mode 'graph'"
        )


# Settings

#: A name of the table, and a value.
ProgramSetting: TypeAlias = "tuple[str, bool | int | float]"

#: The configuration modules by the layers that they belong to.
MODULES: Mapping[str, str] = MappingProxyType({"inductor": INDUCTOR, "functorch": FUNCTORCH, "dynamo": DYNAMO})

# Which code a setting decides on: what every mode runs, what Inductor generates, and that for one kind of device alone.
_EVERY = COMPILED
_GENERATED = ("emulated", "native")


@dataclass(frozen=True)
class Setting:
    """A setting, and what programs are compiled with besides its default.

    Attributes:
        name: as in a program.
        values: none of them is the default.
        modes: in which modes it decides anything.
    """

    name: str
    values: tuple[bool | int | float, ...]
    modes: tuple[str, ...]

    @property
    def layer(self) -> str:
        """The layer that it belongs to, a key of ``MODULES``."""
        return self.name.partition(".")[0]

    @property
    def key(self) -> str:
        """The name within its configuration module."""
        return self.name.partition(".")[2]


def _of(layer: str, modes: tuple[str, ...], **values: tuple[bool | int | float, ...]) -> tuple[Setting, ...]:
    # No name of a setting has two underscores in a row; they stand for a dot.
    return tuple(Setting(f"{layer}.{name.replace('__', '.')}", choices, modes) for name, choices in values.items())


_ON, _OFF = (True,), (False,)

#: The maintained table. What one torch does not have is not drawn there.
SETTINGS: tuple[Setting, ...] = (
    # What the backward recomputes and what the forward saves.
    *_of(
        "functorch",
        _EVERY,
        activation_memory_budget=(0.0, 0.3, 0.7),
        cse=_OFF,
        donated_buffer=_OFF,
        recompute_views=_ON,
        aggressive_recomputation=_ON,
        treat_parameters_as_free_to_save=_OFF,
        ban_recompute_used_far_apart=_OFF,
        ban_recompute_long_fusible_chains=_OFF,
        ban_recompute_materialized_backward=_OFF,
        ban_recompute_not_in_allowlist=_OFF,
        ban_recompute_reductions=_OFF,
        max_dist_from_bw=(1,),
        view_replay_for_aliased_outputs=_OFF,
    ),
    *_of("dynamo", _EVERY, assume_static_by_default=_OFF, use_graph_deduplication=_ON),
    # Passes over graphs.
    *_of(
        "inductor",
        _GENERATED,
        pattern_matcher=_OFF,
        joint_graph_constant_folding=_OFF,
        use_joint_graph_passes=_OFF,
        split_cat_fx_passes=_OFF,
        b2b_gemm_pass=_ON,
        decompose_mem_bound_mm=_ON,
        efficient_conv_bn_eval_fx_passes=_ON,
        permute_fusion=_ON,
        shape_padding=_OFF,
        force_shape_pad=_ON,
        freezing=_ON,
        optimize_scatter_upon_const_tensor=_OFF,
        enable_auto_functionalized_v2=_OFF,
        enable_linear_binary_folding=_ON,
        conv_1x1_as_mm=_ON,
        reorder_for_locality=_OFF,
    ),
    # Lowering: what becomes a buffer, in which layout.
    *_of(
        "inductor",
        _GENERATED,
        layout_optimization=_OFF,
        force_layout_optimization=_ON,
        comprehensive_padding=_OFF,
        force_pointwise_cat=_ON,
        max_pointwise_cat_inputs=(1,),
        realize_reads_threshold=(1,),
        realize_cpu_opcount_threshold=(2,),
        realize_cpu_acc_reads_threshold=(1,),
        delay_realize_cheap_outputs=_OFF,
        split_reductions=_OFF,
        unroll_reductions_threshold=(1, 64),
        online_softmax=_OFF,
        constant_and_index_propagation=_OFF,
        expand_dimension_for_pointwise_nodes=_ON,
        emulate_precision_casts=_ON,
        compute_all_bounds=_ON,
        always_keep_tensor_constants=_ON,
    ),
    # Scheduling: fusion, order, memory.
    *_of(
        "inductor",
        _GENERATED,
        max_fusion_size=(1, 4),
        aggressive_fusion=_ON,
        epilogue_fusion=_OFF,
        epilogue_fusion_first=_ON,
        pick_loop_orders=_OFF,
        loop_ordering_after_fusion=_OFF,
        loop_reindexing_after_fusion=_OFF,
        loop_index_inversion_in_fusion=_OFF,
        score_fusion_memory_threshold=(0,),
        reorder_for_peak_memory=_OFF,
        inplace_buffers=_OFF,
        allow_buffer_reuse=_OFF,
        memory_planning=_ON,
        combo_kernels=_ON,
        graph_partition=_OFF,
        cpp_wrapper=_ON,
        size_asserts=_OFF,
    ),
    *_of(
        "inductor",
        ("native",),
        cpp__simdlen=(1,),
        cpp__enable_loop_tail_vec=_OFF,
        cpp__enable_tiling_heuristics=_OFF,
        cpp__max_horizontal_fusion_size=(1,),
        cpp__min_chunk_size=(1,),
        cpp__threads=(1,),
        cpp__no_redundant_loops=_OFF,
        cpp__fallback_scatter_reduce_sum=_OFF,
        cpp__force_inline_kernel=_ON,
        cpp__use_decompose_tanh=_ON,
        cpp__enable_concat_linear=_ON,
        cpp__use_two_step_variance_threshold=(1,),
    ),
    *_of(
        "inductor",
        ("emulated",),
        triton__max_tiles=(1, 3),
        triton__prefer_nd_tiling=_ON,
        triton__persistent_reductions=_OFF,
        triton__force_cooperative_reductions=_ON,
        triton__dense_indexing=_ON,
        triton__use_block_ptr=_ON,
        triton__tile_reductions=_ON,
        triton__coalesce_tiling_analysis=_OFF,
        triton__tiling_prevents_pointwise_fusion=_OFF,
        triton__tiling_prevents_reduction_fusion=_OFF,
        triton__codegen_upcast_to_fp32=_OFF,
        triton__mix_order_reduction=_OFF,
        triton__use_two_step_variance_threshold=(1,),
    ),
)

#: The table by name.
BY_NAME: Mapping[str, Setting] = MappingProxyType({setting.name: setting for setting in SETTINGS})


def named_settings(names: Collection[str]) -> tuple[Setting, ...]:
    """Return the settings of the table that ``names`` stand for: settings, whole layers, or ``"all"``.

    Raises:
        RegionalValueError: a name of nothing.
    """
    for name in names:
        if name != "all" and name not in MODULES and name not in BY_NAME:
            raise RegionalValueError(unknown_name("setting", name, ("all", *MODULES, *BY_NAME)))
    return tuple(one for one in SETTINGS if "all" in names or one.layer in names or one.name in names)


@functools.cache
def settings_of_mode(mode: str) -> tuple[Setting, ...]:
    """Return the settings of the table that decide anything in ``mode`` and that this torch has."""
    names = {layer: config_names(module) for layer, module in MODULES.items()}
    return tuple(setting for setting in SETTINGS if mode in setting.modes and setting.key in names[setting.layer])


@contextlib.contextmanager
def settings_applied(settings: tuple[ProgramSetting, ...]) -> Iterator[None]:
    """Hold a program's settings while the context lasts.

    Raises:
        KeyError: this torch has no such setting.
    """
    with contextlib.ExitStack() as stack:
        for layer, module in MODULES.items():
            values = {BY_NAME[name].key: value for name, value in settings if name.startswith(f"{layer}.")}
            if values:
                stack.enter_context(patched_config(module, values))
        yield
