"""What the team wants to know after each change of the model, of PyTorch or of the backend."""

import pytest
import torch

from decoder import Decoder, Layer

pytestmark = pytest.mark.regional_compile


@pytest.fixture
def tokens(regional):
    return regional.randint(0, 64, (2, 13))


def make(regional, **options):
    return Decoder(**options).to(regional.device)


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
def test_loss_and_gradients_are_those_of_eager(regional, tokens, recompute):
    regional.assert_parity(make(regional, layers=2, recompute=recompute), tokens)


def test_one_layer_in_bfloat16(regional):
    layer = Layer(32, 4).to(regional.device, torch.bfloat16)
    regional.assert_parity(layer, regional.randn(2, 12, 32, dtype=torch.bfloat16, requires_grad=True))


def test_five_steps_of_training(regional):
    batches = [(regional.randint(0, 64, (2, 13)),) for _ in range(5)]
    report = regional.assert_training_parity(make(regional, layers=2), batches)
    print(report.table())


@pytest.mark.regional_compile(requires=("share_identical",))
def test_four_equal_layers_are_compiled_once(regional, tokens):
    record = regional.run(make(regional), tokens)
    # Attention and feed-forward, forward and backward.
    assert record.counters.region_compiles == 4
    assert record.region("attention", graph="forward").partitions == 4


@pytest.mark.regional_compile(requires=("outer_cache",))
def test_a_job_that_starts_again_compiles_nothing(regional, tokens):
    model = make(regional, layers=2)
    for hits, misses in ((0, 1), (1, 0)):
        with regional.expect(cache_hits=hits, cache_misses=misses):
            regional.run(regional.compile(model), tokens, as_is=True)
        regional.restart()
    assert regional.counters.recompiles == 0


def first_loss(regional):
    torch.manual_seed(0)
    model = make(regional, layers=2)
    return regional.run(regional.compile(model), torch.arange(26).view(2, 13) % 64, as_is=True).output.item()


@pytest.mark.regional_compile(requires=("outer_cache",))
def test_another_process_loads_it(regional):
    (cold, first), (warm, second) = regional.in_new_process(first_loss), regional.in_new_process(first_loss)
    assert cold == warm
    assert (first.cache_misses, second.cache_hits, second.region_compiles) == (1, 1, 0)


def test_a_step_of_one_rank(regional, tokens, fake_pg):
    """Gradients are summed over ranks by a hook; the fake group lets one process run what eight would."""
    fake_pg(world_size=8)
    model = make(regional, layers=1)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: torch.distributed.all_reduce(p.grad))
    regional.run(model, tokens)
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_longer_batches_do_not_compile_for_ever(regional):
    compiled = regional.compile(make(regional, layers=1))
    for length in (9, 13, 17):
        compiled(regional.randint(0, 64, (2, length))).backward()
    # Once for the first length, once for all others.
    assert regional.counters.recompiles == 1
