"""The corpus: which programs it keeps, which it drops, and what lies in its folder."""

import json
import os
import random

import pytest

from pytest_regional.fuzz.corpus import Corpus, CorpusFolder
from pytest_regional.fuzz.findings.files import ProgramFileError
from pytest_regional.fuzz.model.arguments import TensorInput
from pytest_regional.fuzz.model.program import Program, Step


def chain(*operators):
    steps = [Step(name, (index,), (), (index + 1,)) for index, name in enumerate(operators)]
    return Program((TensorInput((4,)),), tuple(steps), (len(operators),), training=False)


ONE, TWO, THREE = chain("sin"), chain("sin", "neg"), chain("sin", "neg", "exp")


def kept(corpus, program, *keys):
    corpus.count(keys)
    return corpus.keep(program, keys)


def test_what_is_new_is_counted_once():
    corpus = Corpus()
    assert corpus.count(["a", "b"]) == ["a", "b"]
    assert corpus.count(["b", "c"]) == ["c"]
    assert corpus.reached == {"a": 1, "b": 2, "c": 1}


def test_a_program_that_reaches_something_is_kept_and_one_that_reaches_nothing_is_not():
    corpus = Corpus()
    assert kept(corpus, TWO, "a")
    assert not kept(corpus, THREE, "a")  # larger, and nothing of its own
    assert not kept(corpus, chain("cos"))
    assert list(corpus) == [TWO]


def test_a_program_whose_keys_smaller_ones_cover_is_dropped():
    corpus = Corpus()
    kept(corpus, THREE, "a", "b")
    kept(corpus, ONE, "a")
    assert list(corpus) == [THREE, ONE]  # it alone reaches b

    kept(corpus, TWO, "b", "c")

    assert list(corpus) == [ONE, TWO]


def test_it_is_bounded_and_what_is_common_goes_first():
    corpus = Corpus(most=2)
    kept(corpus, ONE, "common")
    kept(corpus, TWO, "rare")
    corpus.count(["common"] * 9)
    kept(corpus, THREE, "new")

    assert list(corpus) == [TWO, THREE]
    assert corpus.count(["common"]) == []  # it is not new once more


def test_rare_keys_are_picked_more_often():
    corpus = Corpus()
    kept(corpus, ONE, "common")
    kept(corpus, TWO, "rare")
    corpus.count(["common"] * 19)
    chance = random.Random(0)

    picked = [corpus.pick(chance) for _ in range(400)]

    assert picked.count(ONE) < 100
    assert picked.count(TWO) > 300
    with pytest.raises(IndexError):
        Corpus().pick(chance)


def test_short_programs_are_picked_more_often():
    corpus = Corpus()
    kept(corpus, ONE, "one")
    kept(corpus, THREE, "three")
    chance = random.Random(0)

    picked = [corpus.pick(chance) for _ in range(400)]

    assert picked.count(ONE) > 2 * picked.count(THREE) > 0


def test_the_folder_holds_what_is_kept_and_no_more(tmp_path):
    folder = CorpusFolder(tmp_path / "corpus")
    corpus = Corpus(folder=folder)
    assert list(folder.programs()) == []
    kept(corpus, THREE, "a", "b")
    kept(corpus, ONE, "a")
    assert {program.identity for program in folder.programs()} == {THREE.identity, ONE.identity}

    kept(corpus, TWO, "b")

    assert sorted(path.stem for path in folder.path.iterdir()) == sorted([ONE.identity, TWO.identity])


def test_shards_share_the_folder(tmp_path):
    folder = CorpusFolder(tmp_path)
    saved = [chain(*["sin"] * count) for count in range(1, 9)]
    for program in saved:
        folder.save(program)
    shares = [[program.identity for program in folder.programs(part, 2)] for part in range(2)]

    assert all(shares)
    assert sorted(shares[0] + shares[1]) == sorted(program.identity for program in saved)


def test_the_folder_is_bounded_and_the_oldest_files_go(tmp_path):
    folder = CorpusFolder(tmp_path, most=2)
    for age, program in enumerate((ONE, TWO, THREE)):
        folder.save(program)
        os.utime(tmp_path / f"{program.identity}.json", (age, age))

    assert [program.identity for program in folder.programs()] == [THREE.identity, TWO.identity]
    assert {path.stem for path in tmp_path.iterdir()} == {THREE.identity, TWO.identity}


def test_files_of_others_are_data_and_what_holds_no_program_is_named_and_skipped(tmp_path):
    errors = []
    folder = CorpusFolder(tmp_path, errors.append)
    folder.save(ONE)
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "folder.json").mkdir()
    hostile = json.loads((tmp_path / f"{ONE.identity}.json").read_text())
    hostile["steps"][0]["operator"] = "__import__('os').abort"
    (tmp_path / "hostile.json").write_text(json.dumps(hostile))

    assert [program.identity for program in folder.programs()] == [ONE.identity]
    assert all(isinstance(error, ProgramFileError) for error in errors)
    assert sorted(name for error in errors for name in ("broken", "folder", "hostile") if name in str(error)) == [
        "broken",
        "folder",
        "hostile",
    ]
