"""How a finding of the fuzzer looks that is a known bug of ``suites/history``, and which bugs no campaign can meet.

A signature is no proof: it says what a reduced program has to hold, and how it has to fail, to be read as this bug.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


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
        ("head|narrow|slice.*|chunk|split|select|unbind|literal_index", ".*_|aten_.*__(Tensor|Scalar|List).*"),
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
    # The copied value is computed, which the reducer makes a sine. A clone of an input that is written is another bug.
    "two_clones": Signature(_ALIAS, ("(aten_)?(slice_scatter|clone)", "sin")),
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
        "^further_calls .*value of output", (".*_|aten_.*__.*|custom_(?!onto).*|.*foreach.*|set_.*|put_.*",)
    ),
    "product_of_three_sizes": Signature(
        "^further_calls run value of input$|TypeError at torch.fx.passes.fake_tensor_prop:run_node",
        (),
        ("dynamic", "input:alias"),
    ),
    "split_of_strided_dynamic_input": Signature(_VALUE, ("tensor_split",), ("dynamic",)),
    "bicubic_of_dynamic_size": Signature("isIntList"),
    "jvp_of_slice_dynamic": Signature("Cannot call storage_offset"),
    # Floats
    "deviation_of_large_numbers": Signature(
        "(nan|value) of", (".*(std|var).*|deviation_of_large|unit_vectors|.*norm.*",), ("large",)
    ),
    "negative_zero": Signature("run (nan|value) of", ("(aten_)?elu_?|add|aten_add.*",), ("input:edges",)),
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
    "argmax_of_transposed_sum": Signature("^parity run value of", ("(aten_|at_)?arg(max|min).*",)),
    "argmax_of_permuted_reduction": Signature(
        "value of", (".*arg(max|min).*|value_at_.*", "sum.*|amax|amin|mean|prod|aten_(sum|mean|amax|amin|prod).*")
    ),
    "multilabel_margin_with_padding": Signature("value of", ("aten_multilabel_margin_loss",)),
    "masked_load_of_what_was_stored": Signature(_VALUE, ("(aten_)?(avg|max|lp)_pool.*",), ("input:size one",)),
    "load_before_the_tensor": Signature("MemoryFaultError", ("(aten_)?(avg|max|lp)_pool.*|cat|running_sum",)),
    "foreach_part_reads_another": Signature("MemoryFaultError", ("aten__foreach_.*",)),
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
    "layer_norm_strides": Signature("backward", (".*layer_norm.*",)),
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
    "upsample_strides": Signature(_STRIDE, ("aten__?upsample_nearest(_exact)?1d.*",)),
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
