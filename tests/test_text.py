"""Texts of messages."""

from pytest_regional._base.text import without_middle


def test_a_long_text_keeps_its_start_and_its_end():
    end = "error: 'x' was not declared\nfrom user code:"
    long = f"CppCompileError: C++ compile error\n{'g++ ' * 3000}\n{end}"
    short = without_middle(long)
    assert short.startswith("CppCompileError: C++ compile error\n... ")
    assert short.endswith(end)
    assert len(short) < 3100
    assert without_middle("short") == "short"
