"""Values of draws that a backward repeats: the partitioner that puts them there leaves them without."""

from __future__ import annotations

import torch.fx

from pytest_regional._torch.region_compile import current_fake_mode, detect_fake_mode, is_op_overload

#: AOTAutograd's partitioners write a draw that a checkpoint repeats as one of these, the state in front or by name,
#: with no ``meta["val"]`` (``functionalize_rng_ops``, torch 2.11 to 2.15). This can go when they copy the draw's own.
_REPEATING = ("run_with_rng_state", "graphsafe_run_with_rng_state")


def describe_repeated_draws(graph: torch.fx.Graph) -> None:
    """Give ``meta["val"]`` to repeated draws that lack it: regions that read them have to know shape and dtype."""
    for node in graph.nodes:
        if "val" not in node.meta and str(node.target) in _REPEATING:
            _describe(node)


def _describe(node: torch.fx.Node) -> None:
    operator = next(part for part in node.args if is_op_overload(part))
    behind = node.args[node.args.index(operator) + 1 :]
    keywords = {key: value for key, value in node.kwargs.items() if key != "rng_state"}
    arguments, keywords = torch.fx.node.map_arg((behind, keywords), lambda argument: argument.meta["val"])
    mode = detect_fake_mode((arguments, keywords)) or current_fake_mode()
    if mode is not None:
        with mode:
            node.meta["val"] = operator(*arguments, **keywords)
