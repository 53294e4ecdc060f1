"""Programs that differ in one thing each from ``base``, for ``explain-key``."""

import torch
import torch.distributed as dist

from pytest_regional import region
from pytest_regional._torch.inductor import custom_graph_pass_base


def program(name="mlp", last=1, function=torch.relu, inside=True, **annotation):
    def block(x, w):
        with region(name, **annotation):
            h = x @ w
            if inside:
                h = function(h)
        if not inside:
            h = function(h)
        return h + last

    return block


def inputs(*shape, **more):
    return torch.randn(*(shape or (3, 4)), **more), torch.randn(4, 4, dtype=more.get("dtype"))


def base():
    return program(), inputs()


def shape():
    return program(), inputs(5, 4)


def dtype():
    return program(), inputs(dtype=torch.float64)


def requires_grad():
    return program(), inputs(requires_grad=True)


def region_id():
    return program("attention"), inputs()


def boundary():
    return program(inside=False), inputs()


def config():
    return program(configs={"max_fusion_size": 8}), inputs()


def no_region():
    def block(x, w):
        h = x @ w
        h = torch.relu(h)
        return h + 1

    return block, inputs()


def op():
    return program(function=torch.sigmoid), inputs()


def setting():
    torch._inductor.config.max_fusion_size = 8
    return base()


def autocast():
    torch.set_autocast_enabled("cpu", True)
    torch.set_autocast_dtype("cpu", torch.bfloat16)
    return base()


def threads():
    torch.set_num_threads(torch.get_num_threads() + 1)
    return base()


def no_grad():
    torch.set_grad_enabled(False)
    return base()


class Nothing(custom_graph_pass_base()):
    def __init__(self, uuid):
        self._uuid = uuid

    def __call__(self, graph):
        """Change nothing."""

    def uuid(self):
        return self._uuid


def pass_one():
    torch._inductor.config.pre_grad_custom_pass = Nothing("v1")
    return base()


def pass_two():
    torch._inductor.config.pre_grad_custom_pass = Nothing("v2")
    return base()


def argument():
    def block(renamed, w):
        with region("mlp"):
            h = renamed @ w
            h = torch.relu(h)
        return h + 1

    return block, inputs()


def breaking():
    def block(x):
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos()

    return block, (torch.randn(3),)


def untraced():
    return lambda x: x, (torch.randn(3),)


@torch._dynamo.allow_in_graph
def opaque(x):
    return x @ x


def refused():
    return lambda x: opaque(x) + 1, (torch.randn(3, 3),)


def raising():
    raise ValueError("no data here")


def failing():
    def block(x):
        raise RuntimeError("not today")

    return block, (torch.randn(3, 3),)


def reduced(world, rank=0):
    """Return a program with a collective, in a new process group."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)

    def program(x):
        return torch.ops._c10d_functional.wait_tensor(
            torch.ops._c10d_functional.all_reduce(x * 2, "sum", dist.group.WORLD.group_name)
        ).sin()

    return program, (torch.randn(4),)


def two_ranks():
    return reduced(2)


def second_rank():
    return reduced(2, 1)


def four_ranks():
    return reduced(4)


def sharded(*names):
    """Return a program of a tensor on a mesh of four ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=names)
    return lambda x: (x * 2).sin(), (DTensor.from_local(torch.randn(4, 4), mesh, [Shard(0), Replicate()]),)


def on_mesh():
    return sharded("rows", "others")


def on_renamed_mesh():
    return sharded("columns", "others")
