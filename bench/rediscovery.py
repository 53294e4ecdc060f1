"""How many known bugs a campaign finds by itself: ``python -m bench.rediscovery run FOLDER``, then ``count FOLDER``.

``run`` fuzzes several backends in a row, each for its share of a budget of processor time (``--core-minutes``, of all
processes together, so that a busy machine changes nothing), from fresh seeds, into a folder of findings. The cases of
``suites/history`` are hidden from it: no campaign reads them. A campaign whose process dies is started again with
another seed, and a run that was ended goes on where the folder holds what it has used. ``--tree`` and ``--python`` fuzz
with another checkout, and another version of PyTorch.

``keep`` adds what a run found so far to a file that stays in the repository, as a run may take longer than a machine
is there: for each campaign its seconds and its findings, as far as they are counted.

``count`` compares the findings with the cases of ``suites/history`` that stand on that version, by the signatures
below, and prints a table by class, and how many had been found after a part of the budget where the times are known.
A signature is no proof: it says what a reduced program has to hold, and how it has to fail, to be read as this bug.
Findings without a match are listed, so that somebody reads them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from suites.history.__main__ import VERSIONS
from suites.history.known_bugs import BACKENDS, KnownBug, all_bugs


@dataclass(frozen=True)
class Part:
    """One campaign: a backend, a mode, its share of the budget, and more options of pytest."""

    backend: str
    mode: str
    share: float
    options: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"{self.backend}-{self.mode}"


@dataclass(frozen=True)
class FindingData:
    """One finding, as its file holds it.

    Attributes:
        name: the file, without its suffix.
        backend: where it was found; ``aot_eager`` where AOTAutograd alone shows it.
        fails: its oracle, stage and origin.
        operators: of the reduced program, blocks included.
        features: what is special about it.
    """

    name: str
    backend: str
    fails: str
    operators: frozenset[str]
    features: frozenset[str]


def read(source: Path, seeds: Collection[int] = ()) -> list[FindingData]:
    """Return the findings of all parts below a folder, which may come from another checkout, or in a kept file.

    Args:
        source: the folder or file.
        seeds: of a kept file, the campaigns that began with these; all where there are none.
    """
    if source.is_file():
        return [finding for campaign in campaigns(source, seeds) for finding in campaign.findings]
    return _in_folders(source)


def _in_folders(folder: Path, part: str = "*") -> list[FindingData]:
    return [_finding(path) for each in sorted(folder.glob(part)) for path in _in_files(each)]


def _in_files(findings: Path) -> list[Path]:
    return sorted(path for path in findings.glob("*.json") if not path.name.startswith("corpus"))


@dataclass(frozen=True)
class Campaigned:
    """What one campaign of a part used and found.

    Attributes:
        part: the name of the part.
        seed: what it began with.
        core_seconds: all that it used.
        findings: what it found.
        found_after: by the name of a finding, what was used by then; by the end, if that was not recorded.
    """

    part: str
    seed: int
    core_seconds: float
    findings: tuple[FindingData, ...]
    found_after: Mapping[str, float] = field(default_factory=dict)

    def found_in(self, core_seconds: float) -> tuple[FindingData, ...]:
        """Return what was found before the campaign had used ``core_seconds``."""
        return tuple(
            each for each in self.findings if self.found_after.get(each.name, self.core_seconds) <= core_seconds
        )


def _kept(file: Path) -> list[Campaigned]:
    data = json.loads(file.read_text()) if file.exists() else []
    return [Campaigned(**{**one, "findings": tuple(map(_from_data, one["findings"]))}) for one in data]


def _from_data(data: Mapping[str, Any]) -> FindingData:
    sets = {name: frozenset(data[name]) for name in ("operators", "features")}
    return FindingData(data["name"], data["backend"], data["fails"], **sets)


def campaigns(source: Path, seeds: Collection[int] = ()) -> list[Campaigned]:
    """Return the campaigns of a run's folder, or in a kept file, by part and seed; ``seeds`` as for :func:`read`."""
    if source.is_file():
        return [one for one in _kept(source) if one.seed in seeds or not seeds]
    records = [json.loads(path.read_text()) for path in sorted(source.glob("*.json"))]
    return [
        Campaigned(
            each["part"],
            each["seed"],
            each["core_seconds"],
            tuple(_in_folders(source, each["part"])),
            each.get("found_after", {}),
        )
        for each in records
    ]


def keep(folder: Path, file: Path) -> list[Campaigned]:
    """Add what a run found so far to ``file``, in place of what an earlier call kept of the same campaigns."""
    kept = {(one.part, one.seed): one for one in [*_kept(file), *campaigns(folder)]}
    ordered = [kept[key] for key in sorted(kept)]
    file.write_text(json.dumps([asdict(one) for one in ordered], indent=1, default=sorted) + "\n")
    return ordered


def found_within(source: Path, core_minutes: float, seeds: Collection[int] = ()) -> list[FindingData]:
    """Return what was found when each part had used its share of ``core_minutes``; its campaigns follow by seed."""
    left = {part.name: core_minutes * 60 * part.share for part in PARTS}
    found = []
    for one in campaigns(source, seeds):
        # A run sees the end of its budget a look late, and what it saves then is not noted.
        found += one.found_in(left[one.part] + INTERVAL)
        left[one.part] = max(0.0, left[one.part] - one.core_seconds)
    return found


def _finding(path: Path) -> FindingData:
    data = json.loads(path.read_text())
    program = data.get("program", {})
    steps = [*program.get("steps", []), *(step for block in program.get("blocks", []) for step in block["steps"])]
    inputs = program.get("arguments", [])
    words = {f"dtype:{each['dtype']}" for each in inputs if "dtype" in each}
    words |= {f"input:{each['content']}" for each in inputs if "content" in each}
    words |= {"input:scalar"} if any(each.get("shape") == [] for each in inputs) else set()
    words |= {"training"} if program.get("training") else set()
    words |= {"dynamic"} if program.get("dynamic") or any(each.get("dynamic") for each in inputs) else set()
    words |= {"large"} if "input:large" in words or any(map(_has_large_number, steps)) else set()
    return FindingData(
        path.stem,
        data["backend"],
        f"{data['oracle']} {data['stage']} {data['origin']}",
        frozenset(step["operator"] for step in steps),
        frozenset({*data["features"], *words}),
    )


def _has_large_number(step: Mapping[str, Any]) -> bool:
    """Tell whether a parameter of a step is so large that its square is infinite in float32."""
    return any(isinstance(value, float) and abs(value) > 1e19 for value in step.get("parameters", {}).values())


@dataclass(frozen=True)
class Signature:
    """How a finding of the fuzzer looks that is a certain known bug.

    Attributes:
        fails: a regular expression, found in ``oracle stage origin`` of the finding.
        operators: regular expressions, each of which matches the whole name of an operator of the reduced program.
        features: words that are all among the features of the reduced program.
    """

    fails: str
    operators: tuple[str, ...] = ()
    features: tuple[str, ...] = ()

    @property
    def wants(self) -> int:
        """How much of a program it asks for."""
        return len(self.operators) + len(self.features)

    def matches(self, finding: FindingData) -> bool:
        """Return whether ``finding`` looks so."""
        return (
            re.search(self.fails, finding.fails) is not None
            and all(any(re.fullmatch(wanted, name) for name in finding.operators) for wanted in self.operators)
            and set(self.features) <= finding.features
        )


_VALUE, _GRADIENT, _INPUT = "(nan|value) of output", "value of grad", "value of input"
_ALIAS, _STRIDE, _DRAWS = "alias of output", "stride of output|region_boundary", "draws of random state"
_FAILS = "^(compiles|inference|further_calls|rewrites)"

#: Not where PyTorch fuses partitions that wait for each other, which is a known bug of its own.
_ELSEWHERE = "(?!.*fuse_as_graphmodule)"

#: By the name of a known bug, how it looks.
SIGNATURES: Mapping[str, Signature] = {
    # Aliases
    "foreach_add_reads_what_it_writes": Signature("value of", ("foreach_add_flipped|aten__foreach_add__List",)),
    "clone_of_what_is_written": Signature("value of", ("custom_onto_clone",)),
    "rows_shifted_in_place": Signature(f"{_VALUE}|{_INPUT}", ("shift_rows.*",)),
    "read_after_its_overwrite": Signature(_VALUE, ("aten_addr_|copy_.*",)),
    "index_add_of_itself": Signature(
        "run value of (in|out)put|runtime_wrappers:__torch_dispatch__", ("(aten_)?(index_(put|add|copy)|put).*",)
    ),
    "index_put_into_expanded_view": Signature("value of", ("(aten_)?(index_(put|add|copy)|put).*", "expand.*")),
    "write_to_slice": Signature(_INPUT, ("custom_.*",)),
    "swapped_inputs": Signature(_INPUT, ("custom_exchange|copy_",)),
    "foreach_reads_what_it_wrote": Signature(_INPUT, ("foreach_exchange|aten__foreach_(copy_|.*__.*)",)),
    "number_written_in_place": Signature(_INPUT, (".*_(Scalar|Tensor)?|custom_mutating.*",), ("dtype:float64",)),
    "detached_alias_written": Signature("AssertionError at .*merge_view_inputs"),
    "unbind_of_alias": Signature("gen_alias_from_base", ("unbind",)),
    "split_of_alias": Signature("gen_alias_from_base", ("tensor_split",)),
    "bits_of_alias": Signature("gen_alias_from_base", ("view_bits|bits_of_.*|aten_view_dtype",)),
    "slice_of_alias": Signature(
        "^parity .*value of output",
        ("head|narrow|slice.*|chunk|split|select|literal_index", ".*_|aten_.*__(Tensor|Scalar|List).*"),
        ("input:alias",),
    ),
    "view_is_the_tensor_itself": Signature(
        _ALIAS,
        (
            "view|reshape|slice_of_all|narrow|head|expand.*|squeeze|alias|detach|flatten|unsqueeze|permute|.*nothing|aten_alias_default",
        ),
    ),
    "equal_results_are_one_tensor": Signature(
        _ALIAS,
        (
            "custom_pair|sort.*|topk|split|kthvalue|layer_norm.*|max_dim|aminmax|argsort|var_mean|tensor_split|cumm.*|"
            "unbind|chunk|inverse|batch_norm.*|.*cross_entropy.*|median|values_(median|sorted|topk)|aten__foreach_.*|"
            "aten_(sort|topk|kthvalue|mode|cumm|median|nanmedian|max|min|aminmax|layer|group|frexp|var_m|std_m).*",
        ),
        ("training",),
    ),
    "flatten_of_flat": Signature(_ALIAS, ("flatten(_one)?",)),
    "whole_slice_scatter": Signature(_ALIAS, ("(aten_)?slice_scatter",)),
    # With torch 2.15 a number is enough: ``x * 1.0``, ``0 + x``.
    "product_with_ones": Signature(_ALIAS, ("mul.*|kron|outer|aten_mul.*|div.*|aten_div.*|add_number|sum_by_hand",)),
    "transposed_twice": Signature(_ALIAS, ("matrix_transpose|mT|mH|adjoint",)),
    "write_through_view_of_expanded": Signature("gen_alias_from_base|meta_copy_", ("diagonal|select|zero_row",)),
    "write_to_windows": Signature(_INPUT, ("unfold",)),
    "dynamic_aliases": Signature("compute_overlapping"),
    "dynamic_aliases_written": Signature("RuntimeError at .*merge_view_inputs"),
    "scatter_behind_storage_offset": Signature("value of", (".*as_strided_scatter.*",)),
    "as_strided_of_view": Signature(f"{_VALUE}|MemoryFaultError", ("as_strided",)),
    "as_strided_of_clone": Signature(_VALUE, ("as_strided", "clone")),
    "aliases_at_another_offset": Signature("^further_calls .*value of", (), ("input:alias",)),
    "effect_token_and_written_view": Signature(
        "effect_token|graph_capture_wrappers", ("inverse|solve|cholesky.*|aten_linalg.*",)
    ),
    "sum_of_one_element": Signature("value of", ("sum.*|aten_sum.*|prod|mean.*|amax|amin", "custom_.*")),
    "number_written_by_operator": Signature("value of", ("custom_(mutating.*|exchange)",), ("input:scalar",)),
    "result_given_to_operator_that_writes": Signature("value of", ("custom_mutating",)),
    "view_of_number_alias": Signature("AssertionError at .*gen_alias_from_base", (), ("input:scalar",)),
    "as_strided_behind_write": Signature("^compiles", ("as_strided", ".*_|aten_.*__.*|copy.*")),
    "base_larger_than_traced": Signature(
        "^compiles run AssertionError at torch._inductor.runtime.compile_tasks:call",
        (".*_|aten_.*__.*",),
        ("input:alias",),
    ),
    "write_through_dropout": Signature(f"{_INPUT}|{_ALIAS}|value of", ("dropout_(in_eval|of_none)",)),
    # Caches
    "empty_backward_is_not_saved": Signature("^(warm|caches) restart"),
    # Sizes that are symbols
    "power_of_negative_number": Signature(_VALUE, (".*size.*|.*pow.*",), ("dynamic",)),
    "view_of_strided_dynamic_input": Signature(
        "^further_calls .*value of output", (".*_|aten_.*__.*|custom_.*|.*foreach.*|set_.*|put_.*",)
    ),
    "split_of_strided_dynamic_input": Signature(_VALUE, ("tensor_split",), ("dynamic",)),
    "bicubic_of_dynamic_size": Signature("isIntList"),
    "jvp_of_slice_dynamic": Signature("Cannot call storage_offset"),
    # Floats
    "deviation_of_large_numbers": Signature(
        "(nan|value) of", (".*(std|var).*|deviation_of_large|unit_vectors|.*norm.*",), ("large",)
    ),
    "negative_zero": Signature("(nan|value) of", ("(aten_)?elu_?|add|aten_add.*",), ("input:edges",)),
    "floor_of_quotient": Signature("value of", ("(aten_)?(div.*mode|floor_divide.*)",)),
    "remainder_of_large_quotient": Signature("value of", ("aten_remainder_.*",)),
    "erf_near_zero": Signature("value of", ("(aten_)?(erf|gelu).*",)),
    "casts_down_and_up": Signature("value of", ("rounded_.*|to_(b?float16)",)),
    "product_compared_unrounded": Signature("value of", ("eq|ne|aten_(eq|ne)_Tensor", ".*mul.*"), ("dtype:bfloat16",)),
    "signbit_of_float64": Signature("value of", ("(aten_)?signbit",), ("dtype:float64",)),
    # Gradients
    "hessian_of_trace": Signature("value of", ("hessian|forward_over_reverse",)),
    "recomputed_from_written_input": Signature(
        f"{_GRADIENT}|modified by an inplace", (".*_|custom_.*|copy_.*|foreach_.*|set_.*",), ("training",)
    ),
    "gradient_of_overlapping_output": Signature(_GRADIENT, ("unfold|as_strided|expand.*",)),
    "gradient_of_expanded_leaf": Signature(
        _GRADIENT, ("flatten|reshape|tensor_split|expand_as_itself",), ("dynamic", "layout:expanded")
    ),
    "gradient_of_marked_dirty": Signature(_GRADIENT, ("function_marks_dirty",)),
    "write_by_gradient": Signature(
        "^compiles backward|^compiles run RuntimeError", ("(aten_)?(mul|add|sub|div|addcmul)_.*",)
    ),
    "index_select_of_equal_indices": Signature("codegen.cpp:store"),
    "condition_and_nested_region": Signature(_GRADIENT, ("cond", "nested.*")),
    "average_pool_in_ceil_mode": Signature(_GRADIENT, ("(aten_)?avg_pool.*",)),
    "nested_region_called_twice": Signature(_GRADIENT, ("nested.*",)),
    "foreach_on_view": Signature(_GRADIENT, ("foreach_.*|aten__foreach_.*__.*",), ("training",)),
    "attention_float64_training": Signature("^compiles backward", (".*attention.*",), ("dtype:float64",)),
    "viewed_before_detach": Signature("new_fn INTERNAL ASSERT"),
    # Guards
    "number_not_finite": Signature("CompileForbiddenError|^counters|without another compile"),
    "scale_factor_in_the_cache": Signature("^further_calls .*value of", (".*upsample.*",)),
    # Higher-order operators
    "nested_region_of_equal_inputs": Signature("value of output", ("nested_of_two|nested_compile_region",)),
    "write_to_nested_result": Signature("exc:unimplemented|builder:_wrap_fx_proxy", ("nested.*", ".*_")),
    "aliases_into_nested_region": Signature("UncapturedHigherOrderOpError", ("nested.*",)),
    "while_loop_result_in_function": Signature("_lift_symbols_in_symint", ("while_loop.*",)),
    "condition_writes_what_was_written": Signature("value of", ("while_loop.*",)),
    "scan_of_one_row": Signature("value of", ("running_sum|(associative_)?scan",)),
    # Lowerings
    "argmax_of_transposed_sum": Signature("value of", (".*arg(max|min).*|value_at_.*",)),
    "argmax_of_permuted_reduction": Signature(
        "value of", (".*arg(max|min).*|value_at_.*", "sum.*|amax|amin|mean|prod|aten_(sum|mean|amax|amin|prod).*")
    ),
    "multilabel_margin_with_padding": Signature("value of", ("aten_multilabel_margin_loss",)),
    "masked_load_of_what_was_stored": Signature(_VALUE, ("(aten_)?(avg|max|lp)_pool.*",), ("input:size one",)),
    "load_before_the_tensor": Signature("MemoryFaultError", ("(aten_)?(avg|max|lp)_pool.*|cat",)),
    "atomic_addition_of_int8": Signature("triton.language.semantic:(_validate_atomic|atom_red_type)"),
    "quotient_of_uint8_on_gpu": Signature("TypeError at triton.language.semantic:computation_type"),
    "foreach_sub_forgets_alpha": Signature("value of", ("aten__foreach_sub_.*",)),
    "exponent_of_another_dtype": Signature("dtype of", ("(aten_)?ldexp.*",)),
    "integer_batch_product": Signature("dtype of", ("(aten_)?(bmm|matmul.*|baddbmm.*)",)),
    "index_by_permutation": Signature(_FAILS, ("randperm", "index.*|take.*|gather|permuted")),
    "weight_read_by_branch": Signature("_graph_[01]|^compiles run", (".*conv.*", "cond")),
    "isinf_of_integers": Signature("TypeError at torch._inductor.loop_body:run_node"),
    "index_fill_by_constant": Signature("assert_functional_graph", (".*index_(fill|put|add|copy).*|put_.*",)),
    # Random numbers
    "order_of_dropouts": Signature("value of", ("dropout|rand_like|rand",)),
    "bernoulli_draws_otherwise": Signature(f"{_VALUE}|{_INPUT}|{_DRAWS}", (".*bernoulli.*",)),
    "draws_behind_transposed_write": Signature(_VALUE, ("rand_like|noise", "transpose_add_")),
    "permutation_is_drawn_twice": Signature("value of", ("randperm", "index.*|take.*|gather|permuted")),
    "unused_checkpoint_drops_draws": Signature(f"{_VALUE}|{_DRAWS}", ("checkpoint.*",)),
    "checkpoint_draws_without_gradient": Signature("remat_using_tags"),
    "backward_draws_for_nothing": Signature(_DRAWS, (), ("training",)),
    "dropout_draws_again": Signature(_DRAWS, ("dropout.*|noise|uniform_|.*rand.*|.*bernoulli.*",), ("training",)),
    "unused_dropout": Signature("_functorch.partitioners", ("dropout.*|bernoulli|.*rand.*",), ("training",)),
    # Regions
    "slice_assignment_in_region": Signature("torch.storage:clone", ("(set|put)_.*|setitem",)),
    "constant_in_region": Signature("^compiles|torch.storage:clone", ("new_tensor|literal.*|index_list.*",)),
    "expression_size_input": Signature("_verify_input_symbol_assignment"),
    "draws_change_order": Signature(_VALUE, (".*rand.*|dropout|uniform_|noise",), ("region:entered again",)),
    "strides_leaving_region": Signature(_STRIDE, ("stack|cat.*",)),
    "gaps_leaving_region": Signature("backward", (".*scan.*|recurrence|running_sum",)),
    "interleaved_regions": Signature("fuse_as_graphmodule"),
    "region_in_cond_branch": Signature("cond_op_dense|_tensor:__iter__", ("cond",)),
    "sum_of_gradients_divides_region": Signature("^plan .*partitions"),
    "gradient_of_op_in_place_leaves_region": Signature("^plan .*(partitions|outside|annotat)", (".*_",)),
    "empty_dynamic_region": Signature("run NameError at torch._inductor.runtime.compile_tasks:call"),
    "effect_token_of_dynamic_region": Signature("mark_dynamo_propagated_dynamic_indices"),
    "dropout_of_nothing_in_region": Signature("assert_tensor_metadata", ("dropout",)),
    # Rewrites
    "softmax_over_another_dimension": Signature("value of", (".*attention.*|softmax|aten_softmax.*",)),
    # Strides
    "cat_strides": Signature(_STRIDE, ("cat.*|stack",)),
    "masked_fill_strides": Signature(_STRIDE, ("(aten_)?masked_(fill|scatter)_.*",)),
    "one_hot_strides": Signature(_STRIDE, ("one_hot",)),
    "out_argument_strides": Signature(_STRIDE, (".*_out",)),
    "copysign_strides": Signature(_STRIDE, (".*copysign.*|.*_(like)|aten_(nextafter|hypot|fm|heaviside).*",)),
    "uniform_of_transposed_rows": Signature(f"{_FAILS}{_ELSEWHERE}", ("uniform_",)),
}

#: Known bugs that no campaign of random programs can meet, with the reason.
OUT_OF_REACH: Mapping[str, str] = {
    "stale_hit_autocast": "two compiles in different states; sequences of cache operations look for that",
    "default_dtype_is_not_in_the_key": "two compiles in different states; sequences of cache operations look for that",
    "saved_view_of_input_is_written": "the caller writes between forward and backward",
    "tangents_are_dropped": "the caller passes dual numbers",
    "code_of_a_bound_method": "Python state that changes between calls",
    "parameter_in_the_shadow_of_an_attribute": "Python state that changes between calls",
    "method_in_a_closure": "Python state that changes between calls",
    "integer_in_annotation": "Python state that changes between calls",
    "nested_region_with_an_index": "Python state that changes between calls",
    "nested_region_in_a_nested_region": "Python state that changes between calls",
    "shuffle_in_python": "numbers drawn by Python's random",
    "python_random_after_a_guard": "numbers drawn by Python's random",
    "pseudoinverse_of_complex": "no operator of linear algebra is drawn: few of their results are unique",
    "annotation_mistakes": "an annotation with a misspelt key",
    **dict.fromkeys(
        ("mix_order_float64", "decomposed_product_without_factors", "convolution_by_keywords"),
        "a setting of Inductor that is off unless somebody asks for it: these campaigns draw no settings",
    ),
    **dict.fromkeys(
        (
            "one_minus_bool",
            "random_integers_like",
            "strided_outside_of_storage",
            "cross_entropy_outside_of_one",
            "select_outside",
            "embedding_of_a_negative_index",
            "interpolation_of_nothing",
        ),
        "programs that eager refuses; the oracle 'refused' is checked only by name",
    ),
}


#: What is fuzzed. Most known bugs are in Inductor; most of them show in code for an emulated GPU as well, which takes
#: no C++ compiler.
PARTS = (
    Part("aot_eager", "native", 0.25),
    Part("inductor", "native", 0.25),
    Part("inductor", "emulated", 0.25, ("--regional-device=cuda-emulated",)),
    Part("torch", "native", 0.25),
)

#: Core-minutes after which a report says what was found so far.
BUDGETS = (15, 30, 60, 90, 120, 180, 240)

#: A checkout that has this searches for what is to blame, which takes time and counts for nothing here.
CULPRITS = "pytest_regional/harness/blame"

#: Seconds between two looks at the processor time.
INTERVAL = 1.0

#: Seconds that a campaign has to write its summary, after it is interrupted.
GRACE = 120.0


def run(part: Part, folder: Path, core_seconds: float, *, tree: Path, python: str, seed: int) -> dict[str, object]:
    """Fuzz one part; return what it used, which the folder's file of that part's name holds at all times.

    Raises:
        RuntimeError: campaigns end at once, again and again.
    """
    findings, record = folder / part.name, folder / f"{part.name}.json"
    findings.mkdir(parents=True, exist_ok=True)
    used: dict[str, Any] = {"part": part.name, "core_seconds": 0.0, "starts": 0, "seed": seed, "found_after": {}}
    if record.exists():
        used |= json.loads(record.read_text())
    while used["core_seconds"] < core_seconds:
        used["starts"] += 1
        before = used["core_seconds"]
        command = [python, "-m", "pytest", "suites/fuzz/test_programs.py", "-k", f"test_{part.mode}", "-q", "-n0"]
        command += [f"--regional-backend={part.backend}", "--regional-fuzz=24h", "--regional-timeout=60"]
        command += [f"--regional-findings={findings}", f"--regional-seed={used['seed'] + 1000 * used['starts']}"]
        command += ["--regional-blame=off"] if (tree / CULPRITS).is_dir() else []
        with (findings / f"log-{used['starts']}.txt").open("w") as log:
            process = subprocess.Popen(
                [*command, *part.options],
                cwd=tree,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=_environment(),
            )
            for spent in _until(process, core_seconds - before):
                used["core_seconds"] = round(before + spent, 2)
                for one in _in_files(findings):
                    used["found_after"].setdefault(one.stem, used["core_seconds"])
                record.write_text(json.dumps(used))
        if used["starts"] > 20 and used["core_seconds"] / used["starts"] < 10:
            raise RuntimeError(
                f"{part.name}: {used['starts']} campaigns ended within {used['core_seconds']:.0f} s; see {findings}"
            )
    return used


def _until(process: subprocess.Popen[bytes], core_seconds: float) -> Iterator[float]:
    """Wait until ``process`` ends, or has used ``core_seconds`` and is interrupted; yield the seconds used so far."""
    used = 0.0
    while process.poll() is None:
        used = max(used, processor_seconds(process.pid))
        yield used
        if used >= core_seconds:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            break
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(INTERVAL)


def processor_seconds(session: int) -> float:
    """Return the processor seconds of all processes of a session, and of their children that ended (Linux, proc(5))."""
    ticks = 0
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split() if entry.name.isdigit() else []
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields and int(fields[3]) == session:
            ticks += sum(int(number) for number in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def match(findings: Iterable[FindingData], bugs: Iterable[KnownBug], version: str) -> dict[str, list[str]]:
    """Return by the name of a known bug that stands on ``version`` the findings that look like it.

    A finding counts for a backend that the table of known bugs lists with the bug. One of AOTAutograd counts on
    ``aot_eager`` as well: a campaign draws the partitioner there, and the table is of its own one. Where several
    signatures match, those that ask for most count: a program that could not be reduced holds much that is no cause.
    """
    standing = {bug.name: bug for bug in bugs if bug.stands_in(version) and bug.name in SIGNATURES}
    found: dict[str, list[str]] = {name: [] for name in standing}
    for each in findings:
        matching = {
            name: SIGNATURES[name].wants
            for name, bug in standing.items()
            if each.backend in _backends(bug, version) and SIGNATURES[name].matches(each)
        }
        most = max(matching.values(), default=0)
        for name, wants in matching.items():
            if wants == most:
                found[name].append(each.name)
    return found


def _backends(bug: KnownBug, version: str) -> set[str]:
    backends = {backend for backend in BACKENDS if bug.stands(backend, version)}
    return backends | {"aot_eager"} if bug.layer == "aot_autograd" else backends


def report(folders: Sequence[Path], version: str, seeds: Collection[int] = ()) -> Iterator[str]:
    """Yield a report: a table by class with a column for each folder, then what was found, missed and not matched."""
    bugs = [bug for bug in all_bugs() if bug.stands_in(version)]
    findings_of = {folder.name: read(folder, seeds) for folder in folders}
    columns = {name: (found, match(found, bugs, version)) for name, found in findings_of.items()}
    curves = {folder.name: list(_curve(folder, bugs, version, seeds)) for folder in folders}
    yield f"| class | stand on {version} | can be met | {' | '.join(columns)} |"
    yield "|---|---|---|" + "---|" * len(columns)
    rows = {kind: [bug for bug in bugs if bug.kind == kind] for kind in sorted({bug.kind for bug in bugs})}
    rows |= {"all": bugs, "of these, reported by others": [bug for bug in bugs if bug.number]}
    for title, chosen in rows.items():
        counts = [sum(bool(found.get(bug.name)) for bug in chosen) for _, found in columns.values()]
        reach = sum(bug.name not in OUT_OF_REACH for bug in chosen)
        yield f"| {title} | {len(chosen)} | {reach} | {' | '.join(map(str, counts))} |"
    for name, (findings, found) in columns.items():
        yield f"\n{name}: {len(findings)} findings"
        yield from curves[name]
        yield from (f"  found {bug}: {', '.join(names)}" for bug, names in found.items() if names)
        yield from (f"  missed {bug}" for bug, names in found.items() if not names)
        matched = {each for names in found.values() for each in names}
        yield from (
            f"  no known bug: {each.name}: {each.fails} ({', '.join(sorted(each.operators))})"
            for each in findings
            if each.name not in matched
        )


def _curve(source: Path, bugs: Sequence[KnownBug], version: str, seeds: Collection[int]) -> Iterator[str]:
    chosen = campaigns(source, seeds)
    used = sum(one.core_seconds for one in chosen) / 60
    times_are_known = all(one.found_after or not one.findings for one in chosen)
    for budget in BUDGETS if times_are_known else ():
        if budget <= used:
            found = match(found_within(source, budget, seeds), bugs, version)
            yield f"  in {budget} core-minutes: {sum(map(bool, found.values()))}"


def main() -> None:
    """Run or count."""
    options = _options()
    if options.command == "count":
        print("\n".join(report(options.folders, options.version, options.seeds)))
    if options.command == "keep":
        for one in keep(options.folder, options.file):
            print(
                f"{one.part}, seed {one.seed}: {one.core_seconds / 60:.0f} core-minutes, {len(one.findings)} findings"
            )
    if options.command == "run":
        for part in PARTS:
            if options.only and part.name not in options.only:
                continue
            seconds = options.core_minutes * 60 * part.share
            used = run(part, options.folder, seconds, tree=options.tree, python=options.python, seed=options.seed)
            print(used, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="fuzz")
    running.add_argument("folder", type=Path, help="an empty folder, or one of a run that was ended")
    running.add_argument("--core-minutes", type=float, default=240.0)
    running.add_argument("--tree", type=Path, default=Path(), help="the checkout whose suites/fuzz run")
    running.add_argument("--python", default=sys.executable)
    running.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    running.add_argument("--only", nargs="*", help="parts, such as inductor-native")
    keeping = commands.add_parser("keep", help="add what was found so far to a file of the repository")
    keeping.add_argument("folder", type=Path, help="the folder of a run with one version of PyTorch")
    keeping.add_argument("file", type=Path, help="bench/rediscovered/VERSION.json")
    counting = commands.add_parser("count", help="compare the findings with the known bugs")
    counting.add_argument("folders", type=Path, nargs="+", help="folders or kept files of one version of PyTorch")
    counting.add_argument("--version", required=True, choices=VERSIONS, help="the version of PyTorch that was fuzzed")
    counting.add_argument(
        "--seeds", type=int, nargs="*", default=(), help="of kept files, only campaigns that began with these"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
