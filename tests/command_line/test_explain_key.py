"""``pytest-regional explain-key``: what a key is made of, why two programs do not share, and why they share wrongly."""

import json
import os
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from pytest_regional.command_line import main
from pytest_regional.command_line.explain import passes_of
from pytest_regional.harness.isolation import isolated
from pytest_regional.reference import cache_key, pipeline
from tests.command_line import differing
from tests.warm_process import run_module

HERE = "tests.command_line.differing"
MOVED = "the ops of region 'mlp': %2, %3 in A, %2 in B"
NO_REGION = "  in one program alone: inference.compiled_region_mlp_0 in A"


@pytest.fixture
def explain_key(capsys):
    """Run the command in this process; returns status, output and errors."""

    def run(*arguments):
        named = [one if one.startswith("-") or "." in one or ":" in one else f"{HERE}:{one}" for one in arguments]
        try:
            status = main(["explain-key", *named])
        except SystemExit as ended:
            status = ended.code
        output, errors = capsys.readouterr()
        return status, output, errors

    return run


def differences(output):
    """Return what is listed of the graph: names and values."""
    lines = output.splitlines()
    ends = [at for at, line in enumerate(lines) if line.startswith("regions")] or [len(lines)]
    return [line.strip() for line in lines[: ends[0]] if line.startswith("  ")]


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ("base", "shape", ["input 0 (x), shape: [3, 4] in A, [5, 4] in B"]),
        ("base", "stride", ["input 0 (x), stride: [4, 1] in A, [1, 3] in B"]),
        (
            "base",
            "dtype",
            ["input 0 (x) and 1 more input, dtype: torch.float32 in A, torch.float64 in B"],
        ),
        ("base", "requires_grad", ["input 0 (x), requires_grad: False in A, True in B"]),
        ("base", "region_id", ["the id of a region: mlp in A, attention in B"]),
        (
            "base",
            "boundary",
            [MOVED],
        ),
        ("base", "after", ["what runs before region 'mlp' (after=): [] in A, [\"first\"] in B"]),
        ("base", "config", ["the configs of region 'mlp': {} in A, {\"max_fusion_size\": 8} in B"]),
        ("base", "no_region", ["region 'mlp': there in A, nothing in B"]),
        ("base", "constant", ["the graph, op %4: operator.add(%3, 1) in A, operator.add(%3, 2) in B"]),
        ("base", "op", ["the graph, op %3: torch.relu(%2) in A, torch.sigmoid(%2) in B"]),
        ("base", "setting", ["torch._inductor.config.max_fusion_size: 64 in A, 8 in B"]),
        ("base", "autocast", ["autocast of cpu: off in A, torch.bfloat16 in B"]),
        ("base", "no_grad", ["whether gradients are recorded: True in A, False in B"]),
        ("pass_one", "pass_two", ['the pre-grad passes: ["v1"] in A, ["v2"] in B']),
        ("base", "argument", ["input 0 (x), where it comes from: L['x'] in A, L['renamed'] in B"]),
        ("two_ranks", "four_ranks", ["the process group '0': 2 ranks in A, 4 ranks in B"]),
    ],
)
def test_one_difference_is_named(explain_key, first, second, said):
    status, output, _ = explain_key(first, second)

    assert status == 1
    found = differences(output)
    assert "They differ in " in output
    # The key of torch 2.11 says of autocast twice that it is on.
    assert [line for line in found if not line.startswith("disable_amp")] == said
    assert "lacks" not in output
    assert len(output.splitlines()) <= 12


def test_names_of_values_are_in_pytorchs_key(explain_key):
    output = explain_key("base", "names")[1]
    place, *values = differences(output)
    assert place.startswith("the names of values in the code of the graph, line 1")
    assert "h = p_0 @ p_1;" in " ".join([place, *values])
    assert "product = p_0 @ p_1;" in " ".join([place, *values])
    assert "regions that share their code: 1 of 1" in output


def test_equal_programs_share(explain_key):
    assert explain_key("base", "base")[0] == 0
    status, output, _ = explain_key("two_ranks", "second_rank")
    assert (status, "they share one result" in output) == (0, True)


def test_the_key_is_the_one_that_is_used(explain_key, tmp_path):
    status, output, _ = explain_key("base")
    with isolated(tmp_path, seed=0):
        fn, args = differing.base()
        assert f"key {cache_key(fn, *args)}" in output
    assert status == 0
    for line in (
        "  graph: 3 ops: operator.matmul, torch.relu, operator.add",
        "  inputs: x float32 [3, 4] strides [4, 1] on cpu; w float32 [4, 4]",
        "  annotations: region 'mlp' of 2 ops (",
        f"  machine: python CPython 3.{os.sys.version_info[1]}",
        "  region 'mlp': inference.compiled_region_mlp_0, key ",
    ):
        assert line in output
    assert "torch._inductor.config.max_fusion_size 8" in explain_key("setting")[1]


def test_what_a_factory_sets_does_not_reach_the_other_program(explain_key):
    before = torch._inductor.config.max_fusion_size
    status, output, _ = explain_key("setting", "base")
    assert (status, differences(output)) == (1, ["torch._inductor.config.max_fusion_size: 8 in A, 64 in B"])
    assert torch._inductor.config.max_fusion_size == before
    assert not dist.is_initialized()


def test_inputs_that_are_not_there_are_one_line_each(explain_key):
    output = explain_key("base", "fewer_inputs")[1]
    assert "  input 1 (w): there in A, nothing in B" in output
    assert len(output.splitlines()) <= 12


@pytest.mark.parametrize(
    ("second", "lines"),
    [
        ("constant", ["regions that share their code: 1 of 1"]),
        ("setting", ["regions that share their code: 0 of 1; 1 of them would if settings and state were the same"]),
        (
            "op",
            [
                "regions that share their code: 0 of 1",
                "  inference.compiled_region_mlp_0 differs in op %3:",
                "    A: aten.relu.default(%2) -> float32 [3, 4] strides [4, 1] on cpu",
                "    B: aten.sigmoid.default(%2) -> float32 [3, 4] strides [4, 1] on cpu",
            ],
        ),
        (
            "config",
            [
                "regions that share their code: 0 of 1",
                "  inference.compiled_region_mlp_0 differs in the configs:",
                "    A: ()",
                "    B: ('max_fusion_size', 8)",
            ],
        ),
        (
            "no_region",
            ["regions that share their code: 0 of 1", "  in one program alone: inference.compiled_region_mlp_0 in A"],
        ),
    ],
)
def test_regions(explain_key, second, lines):
    output = explain_key("base", second)[1].splitlines()
    assert output[output.index(lines[0]) :] == lines


def test_a_model_with_many_inputs_and_regions(explain_key):
    status, output, _ = explain_key("model", "model_in_double")
    lines = output.splitlines()
    assert status == 1
    assert lines[3].startswith("  input 0 (self_modules_layers_modules_0_parameters_weight) and 6 more inputs, dtype: ")
    assert lines[4] == "regions that share their code: 0 of 6"
    assert lines[-1] == "  and 5 more regions with other code"
    assert len(lines) <= 12


def test_a_layer_more(explain_key):
    output = explain_key("model", "longer_model")[1]
    assert "input 7 and 1 more input: nothing in A, there in B" in output
    assert "the ops of region" not in output
    assert (
        "in one program alone: forward.compiled_region_layer3_0 in B, backward.compiled_region_layer3_0 in B" in output
    )


def test_a_mesh_of_tensors(explain_key):
    status, output, _ = explain_key("on_mesh", "on_renamed_mesh")
    assert status == 1
    assert "input 0 (x), device_mesh" in output
    assert "rows" in output
    assert "columns" in output


def test_sizes_that_are_symbols(explain_key):
    status, output, _ = explain_key("base", "shape", "--dynamic")
    assert status == 0
    assert "with symbols for sizes: such code is shared in one compile only" in output


#: For each fault of the reference's key: two programs that it gives one key, and the ingredient that the key lacks.
FAULTS = {
    "key_without_annotations": ("no_region", "region 'mlp': there in A, nothing in B"),
    "key_without_configs": ("config", "the configs of region 'mlp': {} in A, {\"max_fusion_size\": 8} in B"),
    "key_without_ids": ("region_id", "the id of a region: mlp in A, attention in B"),
    "key_without_boundaries": (
        "boundary",
        MOVED,
    ),
    "key_without_state": ("threads", "the number of threads: {0} in A, {1} in B"),
    "key_without_shapes": ("shape", "input 0 (x), shape: [3, 4] in A, [5, 4] in B"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_ingredient_that_a_key_lacks_is_named(explain_key, fault):
    second, lacking = FAULTS[fault]
    threads = torch.get_num_threads()
    status, output, _ = explain_key("base", second, f"--backend=tests.faults.backends:{fault}")

    assert status == 0
    assert "although the programs differ" in output
    assert "The key lacks 1 ingredient: a hit that should be a miss." in output
    assert differences(output) == [lacking.format(threads, threads + 1) if "{0}" in lacking else lacking]


def test_pytorchs_own_key_lacks_annotations(explain_key):
    status, output, _ = explain_key("base", "config", "--backend=torch")
    assert status == 0
    assert "The key lacks 1 ingredient: a hit that should be a miss." in output
    assert differences(output) == ["the configs of region 'mlp': {} in A, {\"max_fusion_size\": 8} in B"]


def test_whole_graph_inductor_has_no_annotations_to_lack(explain_key):
    assert "lacks" not in explain_key("base", "config", "--backend=inductor")[1]
    assert differences(explain_key("base", "op", "--backend=inductor")[1]) == [
        "the graph, op %3: torch.relu(%2) in A, torch.sigmoid(%2) in B"
    ]


def test_graphs_that_one_program_has_alone(explain_key):
    assert "graph 1 is of B alone" in explain_key("base", "breaking")[1]


def test_a_program_without_a_key_says_why(explain_key):
    status, output, _ = explain_key("base", "refused")
    assert status == 1
    assert "graph 0 of B has no key, so nothing is shared: Unsupported call_function target" in output
    status, output, _ = explain_key("refused")
    assert status == 1
    assert "graph 0 has no key: Unsupported call_function target" in output


def test_a_switched_off_cache(explain_key):
    with torch._functorch.config.patch(enable_autograd_cache=False):
        assert "graph 0 has no key: the outer cache is switched off" in explain_key("base")[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing:here",), "'nothing' cannot be imported"),
        ((f"{HERE}:bas",), "unknown attribute 'bas'. Did you mean 'base'?"),
        (("base", "raising"), "raising() raised ValueError: no data here"),
        (("failing",), "failing cannot be captured: "),
        (("untraced",), "nothing of tests.command_line.differing:untraced is compiled"),
        (("base", "--backend=aot_eager"), "backend 'aot_eager' does not say with which key its cache is looked up"),
        (("base", "--backend=referenc"), "Did you mean 'reference'?"),
        (("base", "base", "--save=a.json"), "--save writes the keys of one program: give no second one."),
        (("base", "--save=a.txt"), "--save=a.txt: the name has to end with .json."),
        (("base", "--save=no/such/directory/a.json"), "no/such/directory/a.json cannot be written: No such file"),
        (("no/such/file.json",), "no/such/file.json cannot be read: No such file"),
    ],
)
def test_wrong_arguments_are_an_error(explain_key, arguments, message):
    status, output, errors = explain_key(*arguments)
    assert (status, output) == (2, "")
    assert message in errors
    assert "Traceback" not in errors


def test_a_traceback_for_those_who_ask(explain_key):
    with pytest.raises(Exception, match="no data here"):
        explain_key("raising", "--traceback")
    with pytest.raises(Exception, match="not today"):
        explain_key("failing", "--traceback")


def test_two_processes(explain_key, tmp_path):
    """What one process saved is compared in another one, in which an environment variable is another one."""
    saved = tmp_path / "other.json"
    arguments = ["explain-key", f"{HERE}:base", "--save", str(saved)]
    environment = {**os.environ, "TORCHINDUCTOR_MAX_AUTOTUNE": "1"}
    found = run_module("pytest_regional", arguments, Path(__file__).parents[2], environment)
    assert found.returncode == 0, found.stderr

    status, output, _ = explain_key(str(saved), "base")
    assert status == 1
    assert differences(output) == ["torch._inductor.config.max_autotune: True in A, False in B"] or differences(output)[
        0
    ].startswith("torch._inductor.config.max_autotune")
    assert "the environment variable TORCHINDUCTOR_MAX_AUTOTUNE: 1 in A, nothing in B" in output
    assert explain_key(str(saved), str(saved))[0] == 0


def test_keys_of_two_backends_are_not_compared(explain_key, tmp_path):
    explain_key("base", f"--save={tmp_path}/a.json")
    status, _, errors = explain_key(f"{tmp_path}/a.json", "base", "--backend=torch")
    assert status == 2
    assert "A is of backend 'reference' and B of 'torch'" in errors


def edited(change):
    def edit(text):
        data = json.loads(text)
        change(data)
        return json.dumps(data)

    return edit


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: "", "is no JSON"),
        (lambda text: text[:100], "is no JSON"),
        (lambda text: "[1]", "is no file of keys: [1] is no object"),
        (lambda text: text.replace('"key": "', '"key": NaN, "x": "', 1), "holds NaN"),
        (edited(lambda data: data.update(version=2)), "is no file of keys: version: this is not version 1"),
        (edited(lambda data: data.pop("graphs")), "the field 'graphs' is missing"),
        (edited(lambda data: data.update(more=1)), "there is no field 'more'"),
        (edited(lambda data: data["graphs"][0]["key"].update(key=7)), "graphs[0].key.key: 7 is no text"),
        (edited(lambda data: data["graphs"][0]["key"]["ingredients"].update(odd={})), "there is no field 'odd'"),
        (
            edited(lambda data: data["graphs"][0]["ingredients"]["state"].update(x=[])),
            "ingredients.state.x: [] is no text",
        ),
        (
            edited(lambda data: data["graphs"][0]["key"]["regions"][0].update(symbolic=0)),
            "symbolic: 0 is neither true nor",
        ),
        (lambda text: "[" * 100_000, "is nested too deeply"),
    ],
)
def test_a_file_that_is_damaged_or_edited(explain_key, tmp_path, damage, message):
    path = tmp_path / "keys.json"
    assert explain_key("base", f"--save={path}")[0] == 0
    path.write_text(damage(path.read_text(encoding="utf-8")), encoding="utf-8")

    status, output, errors = explain_key(str(path), "base")
    assert (status, output) == (2, "")
    assert str(path) in errors
    assert message in errors
    assert "Write one with: pytest-regional explain-key TARGET --save FILE" in errors


def test_a_file_with_escapes_for_a_terminal(explain_key, tmp_path):
    path = tmp_path / "keys.json"
    explain_key("base", f"--save={path}")
    path.write_text(edited(lambda data: data.update(program="\x1b[31mred"))(path.read_text(encoding="utf-8")))
    assert "\x1b" not in explain_key(str(path), "base")[1]


def test_help_names_everything(explain_key):
    status, output, _ = explain_key("--help")
    assert status == 0
    for name in ("--backend", "--dynamic", "--save", "--traceback", "Exit status"):
        assert name in output


SCALED, THRICE, NO_UUID = (f"{HERE}:{name}" for name in ("SCALED", "THRICE", "without_a_uuid"))
INDUCTOR = "--passes=regional_inductor"


@pytest.mark.parametrize(
    ("first", "second", "passes", "said"),
    [
        ("base", "shape", (INDUCTOR,), "input 0 (argument 0), shape: [3, 4] in A, [5, 4] in B"),
        ("base", "region_id", (INDUCTOR,), "the annotation of node 2\n    A: "),
        ("base", "op", (INDUCTOR,), "    A: relu = torch.ops.aten.relu.default(mm)\n    B: sigmoid = "),
        (
            "base",
            "base",
            (f"--passes={SCALED}", f"--passes={THRICE}"),
            "pass 'scaled'\n    A: uuid ('scaled', 1, ('factor', 2.0)) on graphs forward",
        ),
        ("base", "base", (f"--passes={SCALED}", f"--passes={SCALED},dead_code_elimination"), "the order of the passes"),
        ("base", "setting", (INDUCTOR,), "torch._inductor.config.max_fusion_size: 64 in A, 8 in B"),
        ("base", "base", (INDUCTOR, "--partitioner=default", "--partitioner=min_cut"), "the partitioner: default in A"),
    ],
    ids=["shape", "region", "op", "setting of a pass", "one pass more", "setting of Inductor", "partitioner"],
)
def test_one_difference_of_pipelines_is_named(explain_key, first, second, passes, said):
    status, output, errors = explain_key(first, second, *passes)
    assert (status, errors) == (1, "")
    assert said in output
    assert "The key lacks" not in output


def test_the_key_of_a_pipeline_is_the_one_that_is_used(explain_key, tmp_path, monkeypatch):
    status, output, _ = explain_key("base", INDUCTOR)
    used = []
    module = sys.modules[pipeline.compile.__module__]
    monkeypatch.setattr(module, "record", lambda key, payload: used.append(key))
    with isolated(tmp_path, seed=0):
        fn, args = differing.base()
        pipeline.compile(fn, args, passes=list(passes_of("regional_inductor")), cache=True)
    (key,) = used
    assert status == 0
    for line in (
        f"graph 0: key {key}",
        "  graph: 3 ops: torch.ops.aten.mm.default, torch.ops.aten.relu.default, torch.ops.aten.add.Tensor",
        "  annotations: 2 annotated nodes",
        "  inputs: argument 0 float32 [3, 4] strides [4, 1] on cpu; argument 1 float32 [4, 4]",
        "  passes: the order of the passes regional_inductor",
        "  options: the partitioner default",
    ):
        assert line in output


def test_equal_pipelines_share_and_one_without_a_uuid_does_not(explain_key, tmp_path):
    status, output, _ = explain_key("base", "base", INDUCTOR)
    assert (status, "they share one result" in output) == (0, True)
    assert explain_key("base", INDUCTOR, "--save", str(tmp_path / "a.json"))[0] == 0
    assert explain_key(str(tmp_path / "a.json"), "base", INDUCTOR)[0] == 0
    status, output, _ = explain_key("base", "base", INDUCTOR, f"--passes={NO_UUID}")
    assert status == 1
    assert "graph 0 of B has no key, so nothing is shared: passes without a uuid: 'without_a_uuid'" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("base", "--passes=no_such_pass"), "unknown pass 'no_such_pass'"),
        (("base", INDUCTOR, INDUCTOR), "--passes is given 2 times, for 1 program"),
        (("base", "--partitioner=min_cut"), "--partitioner is of a pipeline: give --passes, too"),
        (("base", INDUCTOR, "--backend=torch"), "--backend and --passes: a pipeline has a key of its own"),
        (("failing", INDUCTOR), "failing cannot be captured: "),
    ],
)
def test_wrong_arguments_of_a_pipeline_are_an_error(explain_key, arguments, message):
    status, output, errors = explain_key(*arguments)
    assert (status, output) == (2, "")
    assert message in errors
    assert "Traceback" not in errors


def test_a_zero_byte_is_a_usage_error_of_every_command(capsys):
    for arguments in (
        ["explain-key", "a\0b.json"],
        ["explain-key", "a.py:f", "--save=a\0b.json"],
        ["explain", "a\0b.py:f"],
        ["compare", "a.json", "a\0b.json"],
        ["merge", "a\0b.json", "--output=c.json"],
        ["replay", "a\0b.json"],
        ["report", "a\0b.json"],
        ["new-backend", "a\0b"],
        ["fuzz", "--findings=a\0b"],
        ["bisect-version", "a\0b.json", "--torch=2.11.0"],
    ):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2, arguments
        assert "a\\x00b" in capsys.readouterr().err.splitlines()[-1], arguments
