"""``pytest-regional explain-key``: why two programs do not share a cached result, and why they share one wrongly."""

import json
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from pytest_regional.cli import main
from pytest_regional.harness.isolation import isolated
from pytest_regional.reference import cache_key
from tests.cli import differing
from tests.warm_process import run_module

HERE = "tests.cli.differing"


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


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ("base", "shape", "input 0, shape: A has [3, 4], B [5, 4]"),
        ("base", "dtype", "input 1, dtype: A has torch.float32, B torch.float64"),
        ("base", "requires_grad", "input 0, requires_grad: A has False, B True"),
        ("base", "argument", "lSource(local_name='renamed'"),
        ("base", "region_id", "annotations, line 1: A has "),
        ("base", "boundary", "annotations, line 4: A has "),
        ("base", "config", "max_fusion_size"),
        ("base", "op", "torch.sigmoid("),
        ("base", "setting", "torch._inductor.config.max_fusion_size: A has 64, B 8"),
        ("base", "no_grad", "grad_enabled: A has True, B False"),
        ("base", "autocast", "bfloat16"),
        ("pass_one", "pass_two", "passes: A has "),
        ("two_ranks", "four_ranks", "groups: A has 0: 2 ranks, B 0: 4 ranks"),
        ("on_mesh", "on_renamed_mesh", "input 0, device_mesh: A has "),
    ],
)
def test_a_difference_is_named(explain_key, first, second, said):
    status, output, _ = explain_key(first, second)
    assert status == 1
    assert " differ in " in output
    assert said in output
    assert "should be a miss" not in output
    assert len(output.splitlines()) <= 12


def test_equal_programs_share(explain_key):
    for first, second in (("base", "base"), ("two_ranks", "second_rank")):
        status, output, _ = explain_key(first, second)
        assert (status, "graph 0: the same key" in output) == (0, True)
    assert explain_key("base", "shape", "--dynamic")[0] == 0


def test_the_key_is_the_one_that_is_used(explain_key, tmp_path):
    status, output, _ = explain_key("base")
    with isolated(tmp_path, seed=0):
        fn, args = differing.base()
        assert f"key {cache_key(fn, *args)}, of " in output
    assert status == 0


def test_what_a_factory_sets_does_not_reach_the_other_program(explain_key):
    before = torch._inductor.config.max_fusion_size
    status, output, _ = explain_key("setting", "base")
    assert (status, "torch._inductor.config.max_fusion_size: A has 8, B 64" in output) == (1, True)
    assert torch._inductor.config.max_fusion_size == before
    assert not dist.is_initialized()


@pytest.mark.parametrize(
    ("fault", "second", "lacking"),
    [
        ("key_without_annotations", "no_region", "the annotation of region 0, line 1: A has id: mlp, B nothing"),
        ("key_without_configs", "config", 'the annotation of region 0, line 3: A has configs: {}, B configs: {"max_'),
        ("key_without_ids", "region_id", "the annotation of region 0, line 1: A has id: mlp, B id: attention"),
        ("key_without_boundaries", "boundary", "the annotation of region 0, line 2: A has ops: %2, %3, B ops: %2"),
        ("key_without_state", "threads", "the number of threads: A has "),
        ("key_without_shapes", "shape", "input 0: A has torch.float32 [3, 4]"),
    ],
)
def test_the_ingredient_that_a_key_lacks_is_named(explain_key, fault, second, lacking):
    status, output, _ = explain_key("base", second, f"--backend=tests.faults.backends:{fault}")
    assert status == 0
    assert "although the programs differ in 1 thing: a hit that should be a miss" in output
    assert lacking in output


def test_keys_of_pytorchs_own_cache(explain_key):
    """The key omits annotations, which the whole-graph backend ignores."""
    status, output, _ = explain_key("base", "config", "--backend=torch")
    assert (status, "a hit that should be a miss" in output) == (0, True)
    assert "should be a miss" not in explain_key("base", "config", "--backend=inductor")[1]
    assert "torch.sigmoid(" in explain_key("base", "op", "--backend=inductor")[1]


def test_a_program_without_a_key_says_why(explain_key):
    assert "Dynamo captures 1 graph in A, and 2 in B" in explain_key("base", "breaking")[1]
    status, output, _ = explain_key("base", "refused")
    assert status == 1
    assert "graph 0 of B has no key, so nothing is shared: Unsupported call_function target" in output
    assert "graph 0 has no key: Unsupported call_function target" in explain_key("refused")[1]
    with torch._functorch.config.patch(enable_autograd_cache=False):
        assert "graph 0 has no key: the outer cache is switched off" in explain_key("base")[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing:here",), "'nothing' cannot be imported"),
        ((f"{HERE}:bas",), "unknown attribute 'bas'. Did you mean 'base'?"),
        (("base", "raising"), "raising cannot be captured: ValueError: no data here"),
        (("failing",), "failing cannot be captured: "),
        (("untraced",), "nothing of tests.cli.differing:untraced is compiled"),
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


def test_saved_keys_are_those_of_the_program(explain_key, tmp_path):
    saved = str(tmp_path / "keys.json")
    assert explain_key("setting", f"--save={saved}")[0] == 0
    assert explain_key(saved, "setting")[0] == explain_key(saved, saved)[0] == 0
    status, output, _ = explain_key(saved, "base")
    assert (status, "  torch._inductor.config.max_fusion_size: A has 8, B 64" in output) == (1, True)
    status, _, errors = explain_key(saved, "base", "--backend=torch")
    assert (status, "A is of backend 'reference' and B of 'torch'" in errors) == (2, True)


@pytest.mark.parametrize(
    ("fault", "second", "lacking"),
    [
        ("key_without_configs", "config", 'the annotation of region 0, line 3: A has configs: {}, B configs: {"max_'),
        ("key_without_state", "threads", "the number of threads: A has "),
    ],
)
def test_saved_keys_hold_what_a_key_lacks(explain_key, tmp_path, fault, second, lacking):
    saved, backend = str(tmp_path / "keys.json"), f"--backend=tests.faults.backends:{fault}"
    assert explain_key("base", f"--save={saved}", backend)[0] == 0
    status, output, _ = explain_key(saved, second, backend)
    assert status == 0
    assert "a hit that should be a miss" in output
    assert lacking in output


@pytest.mark.slow("starts processes that import torch", fast="test_saved_keys_are_those_of_the_program")
def test_two_processes(explain_key, tmp_path):
    """What one process saved is compared in another one, in which an environment variable is another one."""
    saved = tmp_path / "other.json"
    arguments = ["explain-key", f"{HERE}:base", "--save", str(saved)]
    environment = {**os.environ, "TORCHINDUCTOR_MAX_AUTOTUNE": "1"}
    found = run_module("pytest_regional", arguments, Path(__file__).parents[2], environment)
    assert found.returncode == 0, found.stderr

    status, output, _ = explain_key(str(saved), "base")
    assert (status, "  torch._inductor.config.max_autotune: A has True, B False" in output) == (1, True)
    assert explain_key(str(saved), str(saved))[0] == 0
    status, _, errors = explain_key(str(saved), "base", "--backend=torch")
    assert status == 2
    assert "A is of backend 'reference' and B of 'torch'" in errors


def test_a_file_that_is_damaged_or_edited(explain_key, tmp_path):
    def edited(change):
        data = json.loads(text)
        change(data)
        return json.dumps(data)

    path = tmp_path / "keys.json"
    assert explain_key("base", f"--save={path}")[0] == 0
    text = path.read_text(encoding="utf-8")
    for damaged, message in (
        ("", "is empty"),
        (text[:100], "is not JSON"),
        ("[1]", "is no file of keys: the document: Expected `object`, got `array`"),
        (text.replace('"key": "', '"key": NaN, "x": "', 1), "holds NaN"),
        (text.replace('"key": "', '"key": "a", "key": "', 1), "has the field 'key' twice"),
        (edited(lambda data: data.update(version=1)), "version: Invalid enum value 1"),
        (edited(lambda data: data.pop("graphs")), "missing required field `graphs`"),
        (edited(lambda data: data["graphs"][0].update(key=7)), "graphs[0].key: Expected `str`, got `int`"),
        (edited(lambda data: data["graphs"][0]["texts"].update(x=[])), "graphs[0].texts[...]: Expected `str`"),
        ("[" * 100_000, "is nested too deeply"),
    ):
        path.write_text(damaged, encoding="utf-8")
        status, output, errors = explain_key(str(path), "base")
        assert (status, output) == (2, ""), message
        assert str(path) in errors
        assert message in errors
        assert "Write one with: pytest-regional explain-key TARGET --save FILE" in errors
    path.write_text(edited(lambda data: data.update(program="\x1b[31mred")))
    assert "\x1b" not in explain_key(str(path), "base")[1]


def test_a_zero_byte_is_a_usage_error_of_every_command(capsys):
    for arguments in (
        ["explain-key", "a\0b.json"],
        ["explain-key", "a.py:f", "--save=a\0b.json"],
        ["explain-key", "a\0b.py:f"],
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
