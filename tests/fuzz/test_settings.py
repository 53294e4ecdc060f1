"""Compiler settings that programs are compiled under."""

import ast
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch._functorch.config
import torch._inductor.config

from pytest_regional import BackendSpec
from pytest_regional._base.documents import DocumentError
from pytest_regional._base.errors import RegionalValueError
from pytest_regional._torch.config import config_default, functorch_config
from pytest_regional.fuzz.budget import Budget
from pytest_regional.fuzz.campaign import Campaign, Programs
from pytest_regional.fuzz.draw.encoding import Options
from pytest_regional.fuzz.draw.graphs import random_program
from pytest_regional.fuzz.findings import files
from pytest_regional.fuzz.findings.folder import features_of
from pytest_regional.fuzz.findings.scripts import stand_alone
from pytest_regional.fuzz.model.arguments import TensorInput
from pytest_regional.fuzz.model.program import Program, Step
from pytest_regional.fuzz.oracles import OracleViolationError, check
from pytest_regional.fuzz.settings import (
    BY_NAME,
    MODES,
    MODULES,
    SETTINGS,
    named_settings,
    settings_applied,
    settings_of_mode,
)
from pytest_regional.fuzz.shrink import reduce_program
from pytest_regional.testing import regional

PLAIN = Program((TensorInput((4,)),), (Step("sin", (0,), results=(1,)),), (1,), training=False)
UNFUSED = ("inductor.max_fusion_size", 1)
BUDGET = ("functorch.activation_memory_budget", 0.3)
SET = replace(PLAIN, settings=(UNFUSED, BUDGET, ("inductor.aggressive_fusion", True)))


def test_no_value_is_the_default_and_each_setting_exists():
    for mode in MODES:
        for setting in settings_of_mode(mode):
            assert setting.values
            assert config_default(MODULES[setting.layer], setting.key) not in setting.values, setting


def test_a_setting_of_a_misspelled_name_would_be_noticed():
    """All that no mode has are listed: a typo in the table is one of them."""
    here = {setting.name for mode in MODES for setting in settings_of_mode(mode)}
    missing = set(BY_NAME) - here
    assert missing <= NOT_IN_EVERY_TORCH, missing - NOT_IN_EVERY_TORCH


#: Some torch from 2.11 to 2.15 does not have them.
NOT_IN_EVERY_TORCH = {"inductor.loop_index_inversion_in_fusion", "inductor.loop_reindexing_after_fusion"}


def test_the_page_lists_them():
    page = Path("docs/fuzzing-settings.md").read_text(encoding="utf-8").partition("## What is left out")[0]
    assert set(re.findall(r"`((?:functorch|dynamo|inductor)\.[\w.]+)`", page)) == set(BY_NAME)


def test_settings_hold_inside_and_are_restored():
    before = torch._inductor.config.max_fusion_size, torch._functorch.config.activation_memory_budget
    with settings_applied(SET.settings):
        assert (torch._inductor.config.max_fusion_size, torch._functorch.config.activation_memory_budget) == (1, 0.3)
    assert (torch._inductor.config.max_fusion_size, torch._functorch.config.activation_memory_budget) == before


def test_programs_without_settings_are_what_they_were():
    assert "config" not in PLAIN.source
    assert "settings" not in files.to_data(PLAIN)
    assert PLAIN.identity != SET.identity


def test_the_source_sets_them():
    assert "import torch._functorch.config\nimport torch._inductor.config\n" in SET.source
    assert "torch._inductor.config.max_fusion_size = 1\n" in SET.source
    assert "torch._functorch.config.activation_memory_budget = 0.3\n" in SET.source


@pytest.mark.parametrize("backend", ["torch", "inductor"])
def test_a_script_sets_them_before_it_compiles(backend):
    script = stand_alone(SET, "parity", "Values differ", backend)
    tree = ast.parse(script)
    lines = {ast.unparse(node): node.lineno for node in tree.body}
    assert lines["torch._inductor.config.max_fusion_size = 1"] < next(
        line for code, line in lines.items() if code.startswith("compiled = ")
    )


def test_files_keep_them():
    assert files.from_data(files.to_data(SET)) == SET


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"inductor.no_such": True}, "settings.* is not a setting that programs are compiled under"),
        ({"inductor.max_fusion_size": True}, "True is none of 1, 4"),
        ({"inductor.aggressive_fusion": 1}, "1 is none of True"),
        ({"inductor.max_fusion_size": 10**9}, "is none of 1, 4"),
        ([], "settings: Expected `object`, got `array`"),
    ],
)
def test_files_refuse_others(settings, problem):
    with pytest.raises(DocumentError, match=problem):
        files.from_data({**files.to_data(PLAIN), "settings": settings})


def test_features_name_them():
    assert features_of(SET) - features_of(PLAIN) == {f"setting:{name}" for name, _ in SET.settings}


def test_the_smallest_set_that_shows_a_failure():
    reduced = reduce_program(SET, lambda program: UNFUSED in program.settings)
    assert reduced.settings == (UNFUSED,)
    assert reduce_program(SET, lambda program: True).settings == ()


def test_half_of_the_programs_have_some():
    options = Options(settings=settings_of_mode("native"))
    drawn = [random_program(random.Random(seed), options=options) for seed in range(200)]
    with_some = [program for program in drawn if program.settings]
    assert 70 < len(with_some) < 130
    assert max(len(program.settings) for program in drawn) == 3
    assert len({name for program in drawn for name, _ in program.settings}) > 40
    assert all(value in BY_NAME[name].values for program in drawn for name, value in program.settings)


def test_none_unless_asked_for():
    assert not any(random_program(random.Random(seed)).settings for seed in range(50))


def test_the_rest_of_a_program_is_the_same_with_and_without():
    options = Options(settings=settings_of_mode("native"))
    for seed in range(50):
        drawn, plain = (random_program(random.Random(seed), options=one) for one in (options, Options()))
        assert replace(drawn, settings=()) == plain


def test_names_and_layers():
    assert named_settings(["all"]) == SETTINGS
    assert {one.layer for one in named_settings(["functorch"])} == {"functorch"}
    assert [one.name for one in named_settings(["inductor.pattern_matcher"])] == ["inductor.pattern_matcher"]
    with pytest.raises(RegionalValueError, match=r"Did you mean 'inductor.pattern_matcher'"):
        named_settings(["inductor.pattern_macher"])


def test_modes_have_their_own():
    assert not any(one.name.startswith("inductor.") for one in settings_of_mode("interpret"))
    assert settings_of_mode("graph") == settings_of_mode("interpret")
    assert any(one.name.startswith("inductor.cpp.") for one in settings_of_mode("native"))
    assert not any(one.name.startswith("inductor.cpp.") for one in settings_of_mode("emulated"))
    assert any(one.name.startswith("inductor.triton.") for one in settings_of_mode("emulated"))


def test_a_program_is_compiled_under_its_settings():
    """What a backend sees while it compiles; and its results are judged under them."""
    seen = []

    def backend(gm, inputs):
        seen.append(functorch_config().activation_memory_budget)
        return gm

    program = replace(PLAIN, settings=(BUDGET,))
    with regional(BackendSpec("watcher", lambda: backend), "cpu", expects_regions=False) as harness:
        check(harness, program, oracles=("compiles", "parity"))
        check(harness, PLAIN, oracles=("compiles", "parity"))
    assert set(seen) == {0.3, 1.0}
    assert seen[0] == 0.3


def test_a_campaign_names_the_setting_to_blame():
    def checker(program, **how):
        if UNFUSED in program.settings:
            raise OracleViolationError("parity", "run", "", origin="value")

    def draw(seed):
        while True:
            yield SET

    (finding,) = Campaign(Programs(checker, draw), Budget(examples=1), 0).run().findings
    assert finding.program.settings == (UNFUSED,)
    assert "setting:inductor.max_fusion_size" in finding.features
