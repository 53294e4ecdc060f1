"""Names in a wrapper: what a dotted call stands for, which variables an expression mentions."""

from __future__ import annotations

import ast

# Names under which Inductor calls a library routine that is no operator of that name.
EXTERN_KERNELS = {
    "bias_addmm": "aten.addmm.default",
    "mm_dtype": "aten.mm.dtype",
    "bmm_dtype": "aten.bmm.dtype",
    "conv1x1_via_mm": "aten.convolution.default",
    "call_aten_dw": "aten.convolution_backward.default",
    "call_aten_dx": "aten.convolution_backward.default",
    "_mm_plus_mm": "inductor._mm_plus_mm.default",
}
# What stands before a dot in a wrapper and is no buffer.
MODULES = frozenset(
    ["torch", "aten", "extern_kernels", "inductor_ops", "_quantized", "async_compile", "math", "self", "device", "inf"]
)
REDUCTIONS = frozenset(["sum", "prod", "amax", "amin", "any"])
COLLECTIVES = ("_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "_dtensor")


def dotted(node: ast.expr) -> str | None:
    """Return ``"a.b.c"`` for an attribute chain on a name, None for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


def module_aliases(module: ast.Module) -> dict[str, str]:
    """Return what the module's short names stand for, such as ``aten`` for ``torch.ops.aten``."""
    aliases: dict[str, str] = {}
    for statement in module.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            path = dotted(statement.value)
            if path and "." in path:
                aliases[statement.targets[0].id] = path
    return aliases


def resolved(path: str, aliases: dict[str, str]) -> str:
    """Return ``path`` with its first name replaced by what it stands for."""
    head, dot, rest = path.partition(".")
    return aliases.get(head, head) + dot + rest


def operator_called(path: str) -> str | None:
    """Return the operator that the resolved call ``path`` runs, such as ``"aten.mm.default"``, or None."""
    if path.startswith("torch.ops."):
        return path.removeprefix("torch.ops.")
    if path.startswith("extern_kernels."):
        name = path.removeprefix("extern_kernels.")
        return EXTERN_KERNELS.get(name, f"aten.{name}.default")
    return None


def reduction_finished(call: ast.Call) -> str | None:
    """Return ``"sum"`` for ``workspace[0:64].view(8, 8).sum(dim=0)``, else None.

    So Inductor adds up what the programs of a kernel with reductions along both dimensions left in its workspace.
    """
    node: ast.expr = call
    methods = []
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        methods.append(node.func.attr)
        node = node.func.value
    found = [method for method in methods if method in REDUCTIONS]
    return found[0] if found and isinstance(node, ast.Subscript) else None


def is_collective(operator: str) -> bool:
    """Say whether ``operator`` belongs to a namespace of collectives."""
    return operator.partition(".")[0] in COLLECTIVES


def is_wait(operator: str) -> bool:
    """Say whether ``operator`` waits for a collective."""
    return is_collective(operator) and operator.split(".")[1] == "wait_tensor"


def mentioned(*nodes: ast.AST) -> tuple[str, ...]:
    """Return the variables that ``nodes`` mention, once each, in order; names of functions and modules are left out."""
    found: dict[str, None] = {}
    pending = list(reversed(nodes))
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Name) and node.id not in MODULES:
            found[node.id] = None
        pending += reversed(_parts(node))
    return tuple(found)


def _parts(node: ast.AST) -> list[ast.AST]:
    """Return the children of ``node``, but not the name of a function that it calls; the frequent kinds go first."""
    if isinstance(node, (ast.Constant, ast.Name)):
        return []
    if isinstance(node, (ast.Tuple, ast.List)):
        return [*node.elts]
    if isinstance(node, ast.Attribute):
        return [node.value]
    if isinstance(node, ast.Call):
        function = [] if isinstance(node.func, ast.Name) else [node.func]
        return [*function, *node.args, *(keyword.value for keyword in node.keywords)]
    return list(ast.iter_child_nodes(node))


def targets_of(node: ast.Assign) -> tuple[str, ...]:
    """Return the variables that an assignment binds; ``buf1[0] = x`` binds ``buf1``."""
    found = [part.id for target in node.targets for part in ast.walk(target) if isinstance(part, ast.Name)]
    return tuple(dict.fromkeys(found))


def spelled(node: ast.expr) -> str:
    """Return ``buf0`` or ``buf0[1]`` for a variable or an element of one, else the variable it is about."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return f"{spelled(node.value)}[{node.slice.value!r}]"
    return node.id if isinstance(node, ast.Name) else next(iter(mentioned(node)), "")


def elements_of(target: ast.expr) -> tuple[str, ...]:
    """Return the names that an assignment's ``target`` binds, element by element."""
    if isinstance(target, (ast.Tuple, ast.List)):
        return tuple(map(spelled, target.elts))
    return (spelled(target),)
