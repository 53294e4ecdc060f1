"""Files of goldens: which entry holds, what an update changes, and what a damaged file says."""

from __future__ import annotations

import pytest

from pytest_regional.harness.goldens.file import HEADER, GoldenFile, GoldenFileError, GoldenKey

KEY, OTHER = GoldenKey("test_a[4 | x]", "reference"), GoldenKey("test_a[4 | x]", "torch", "second one")
A, B, C = (("passes", f"  graphs: {n}") for n in (1, 2, 3))


def read(tmp_path, text):
    path = tmp_path / "test_a.txt"
    path.write_text(text)
    return GoldenFile.read(path)


def versions(file, key=KEY, device="cpu"):
    return {version: entry.text for version, entry in file.goldens[key][device].items()}


def test_a_file_reads_as_it_is_written(tmp_path):
    file = GoldenFile()
    file.put(OTHER, "cuda", (2, 13), A)
    file.put(KEY, "cpu", (2, 11), A)
    file.put(KEY, "cuda", (2, 11), A)
    file.put(KEY, "cpu", (2, 15), B)
    text = str(file)
    assert text == (
        f"{HEADER}\n=== test_a[4 | x]\n"
        "--- reference | from torch 2.11 | cpu, cuda\npasses\n  graphs: 1\n"
        "--- reference | from torch 2.15 | cpu\npasses\n  graphs: 2\n"
        "--- torch | second one | from torch 2.13 | cuda\npasses\n  graphs: 1\n"
    )
    again = read(tmp_path, text)
    assert str(again) == text
    assert versions(again) == {(2, 11): A, (2, 15): B}


def test_a_comment_above_the_first_test_stays(tmp_path):
    text = "# ours\n\n=== test_a\n--- torch | from torch 2.13 | cpu\npasses\n  graphs: 1\n"
    assert str(read(tmp_path, text)) == text


@pytest.mark.parametrize(
    ("version", "holding"), [((2, 10), None), ((2, 11), A), ((2, 12), A), ((2, 13), B), ((2, 16), B), ((3, 0), B)]
)
def test_an_entry_holds_until_the_next(version, holding):
    file = GoldenFile()
    file.put(KEY, "cpu", (2, 11), A)
    file.put(KEY, "cpu", (2, 13), B)
    found = file.holding(KEY, "cpu", version)
    assert (found and found[1].text) == holding
    assert file.holding(KEY, "cuda", version) is None


def test_an_update_leaves_other_versions_and_says_nothing_twice():
    file = GoldenFile()
    for version, text in (((2, 11), A), ((2, 13), B), ((2, 15), C)):
        file.put(KEY, "cpu", version, text)
    file.put(KEY, "cpu", (2, 13), ("passes", "  graphs: 9"))
    assert versions(file) == {(2, 11): A, (2, 13): ("passes", "  graphs: 9"), (2, 15): C}
    file.put(KEY, "cpu", (2, 13), A)
    assert versions(file) == {(2, 11): A, (2, 15): C}
    file.put(KEY, "cpu", (2, 11), C)
    assert versions(file) == {(2, 11): C}


def test_a_golden_is_removed_on_one_class_of_devices_or_all():
    file = GoldenFile()
    for device in ("cpu", "cuda"):
        file.put(KEY, device, (2, 11), A)
    file.remove(KEY, "cpu")
    assert list(file.goldens[KEY]) == ["cuda"]
    file.remove(KEY)
    assert str(file) == ""


START = "=== test_a\n--- torch | from torch 2.13 | cpu\n"
FACT = "passes\n  graphs: 1\n"


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("graphs: 1\n", 1, "expected a line that begins with '=== '"),
        ("=== test_a\npasses\n", 2, "expected a line that begins with '=== '"),
        (START.partition("\n")[2] + FACT, 1, "expected a line === TEST before it"),
        (START, 2, "no facts below it"),
        (START + "  graphs: 1\n", 3, "expected the name of a fact (regions,"),
        (START + FACT + "speed\n", 5, "expected the name of a fact (regions,"),
        (START + FACT + "# mine\n", 5, "expected the name of a fact (regions,"),
        ("=== test_a\n--- torch | 2.13 | cpu\n" + FACT, 2, "expected --- BACKEND | from torch 2.13 | DEVICES"),
        ("=== test_a\n--- torch | from torch 2.13\n" + FACT, 2, "expected --- BACKEND | from torch 2.13 | DEVICES"),
        (START + FACT + START.partition("\n")[2] + FACT, 5, "the same golden as in line 2: delete one of them"),
        (START + "<<<<<<< HEAD\n" + FACT, 3, "a merge conflict: keep one side, then run pytest --regional-update"),
        (START + FACT + "=======\n", 5, "a merge conflict"),
        (START + FACT + ">>>>>>> branch\n", 5, "a merge conflict"),
        (START + FACT + "||||||| base\n", 5, "a merge conflict"),
    ],
)
def test_a_damaged_file_says_where_and_why(tmp_path, text, line, why):
    with pytest.raises(GoldenFileError) as error:
        read(tmp_path, text)
    assert str(error.value).startswith(f"{tmp_path / 'test_a.txt'}:{line}: ")
    assert why in str(error.value)


def test_a_file_that_is_no_text(tmp_path):
    path = tmp_path / "test_a.txt"
    path.write_bytes(b"=== test_a\n\xff\n")
    with pytest.raises(GoldenFileError, match=r"test_a.txt:2: .* is not UTF-8"):
        GoldenFile.read(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(GoldenFileError, match="cannot read"):
        GoldenFile.read(path)


def test_line_ends_of_any_system(tmp_path):
    assert versions(read(tmp_path, (START + FACT).replace("\n", "\r\n")), GoldenKey("test_a", "torch")) == {(2, 13): A}
