"""Another user of the machine puts files where this one's run will look: none is run, and none changes a number.

The other user is a real one: a process that gave root's rights away.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import warnings
from pathlib import Path

import pytest

from pytest_regional._base.errors import RegionalValueError
from pytest_regional.harness.kernel_store import KernelFiles, kernels_kept, prepared
from pytest_regional.reference import ArtifactError
from pytest_regional.reference.caching.container import read_artifact, write_artifact

from .another_user import ATTACKER, as_attacker, common_folder, copy, needs_root

pytestmark = needs_root

KEY = "ab" * 32
RIGHT, WRONG = b"what the compiler made", b"what the other user made"


@pytest.fixture
def common():
    with common_folder() as folder:
        yield folder


def test_the_other_user_is_another(common):
    """What follows shows nothing unless the other user may write here, and may not read what is root's alone."""
    (common / "mine").write_text("")
    (common / "mine").chmod(0o600)
    assert as_attacker(copy, b"", common / "his")
    assert (common / "his").stat().st_uid == ATTACKER
    assert not as_attacker((common / "mine").read_bytes)
    assert not as_attacker(copy, b"", common / "mine")


# The kernel store and the outer cache: how a folder was left open, and what the other user does there.


def open_store(folder):
    folder.chmod(0o777)
    assert as_attacker(copy, forged(), folder / KEY[:2] / KEY[2:])


def opened_before(folder):
    open_store(folder)
    folder.chmod(0o700)


def open_file(folder):
    path = folder / KEY[:2] / KEY[2:]
    for place, mode in ((folder, 0o755), (path.parent, 0o755), (path, 0o666)):
        place.chmod(mode)
    assert as_attacker(path.write_bytes, forged())


def link_for_a_folder(folder):
    folder.chmod(0o777)
    shutil.rmtree(folder / KEY[:2])
    his = folder.parents[1] / "his"
    assert as_attacker(copy, forged(), his / KEY[2:])
    assert as_attacker((folder / KEY[:2]).symlink_to, his)
    folder.chmod(0o700)


def exchanged_by_the_owner_above(folder):
    os.chown(folder.parent, ATTACKER, ATTACKER)
    assert as_attacker(exchange, folder)


def exchanged_by_root_of_its_own(folder):
    """The store that he puts there is root's too: he found it elsewhere, and it holds other kernels."""
    elsewhere = folder.parent / "elsewhere"
    elsewhere.mkdir()
    copy(forged(), elsewhere / KEY[:2] / KEY[2:], 0o600)
    os.chown(folder.parent, ATTACKER, ATTACKER)
    assert as_attacker(folder.rename, folder.with_name("aside"))
    assert as_attacker(elsewhere.rename, folder)


def exchange(folder):
    folder.rename(folder.with_name("aside"))
    copy(forged(), folder / KEY[:2] / KEY[2:])


_FORGED: list[bytes] = []


def forged():
    """What the store would have written, for the other user's kernel: how it is made is no secret."""
    if not _FORGED:
        with tempfile.TemporaryDirectory() as folder:
            KernelFiles(prepared(Path(folder, "store"))).write(KEY, WRONG)
            _FORGED.append(Path(folder, "store", KEY[:2], KEY[2:]).read_bytes())
    return _FORGED[0]


STORES = (
    open_store,
    opened_before,
    open_file,
    link_for_a_folder,
    exchanged_by_the_owner_above,
    exchanged_by_root_of_its_own,
)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("attack", STORES, ids=lambda attack: attack.__name__)
def test_kernel_store(common, attack):
    forged()
    (common / "above").mkdir(mode=0o755)
    files = KernelFiles(prepared(common / "above" / "store"))
    if attack is not open_store and attack is not opened_before:
        files.write(KEY, RIGHT)
    attack(files.folder)
    assert files.read(KEY) in (None, RIGHT)
    files.keep(KEY, RIGHT)
    assert files.read(KEY) in (None, RIGHT)


def test_unused_files_are_reported_with_their_owner(common):
    files = KernelFiles(prepared(common / "store"))
    opened_before(files.folder)
    with pytest.warns(UserWarning, match=rf"not used.*{files.folder}/{KEY[:2]} is owned by user {ATTACKER}.*chown"):
        assert files.read(KEY) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert files.read(KEY) is None, "it is said once"


def owned_by_another(above):
    os.chown(above, ATTACKER, ATTACKER)


def open_to_all(above):
    above.chmod(0o777)


def open_to_a_group(above):
    os.chown(above, 0, ATTACKER)
    above.chmod(0o775)


def sticky_but_another_users(above):
    os.chown(above, ATTACKER, ATTACKER)
    above.chmod(0o1777)


ABOVE = (owned_by_another, open_to_all, open_to_a_group, sticky_but_another_users)


@pytest.mark.parametrize("attack", ABOVE, ids=lambda attack: attack.__name__)
def test_a_folder_above_the_kernel_store(common, attack):
    (common / "above").mkdir()
    attack(common / "above")
    with pytest.raises(RegionalValueError, match="can be exchanged by"):
        prepared(common / "above" / "store")


@pytest.mark.parametrize("attack", ABOVE, ids=lambda attack: attack.__name__)
def test_a_folder_above_an_artifact(common, attack):
    path = common / "above" / "folder" / "one.artifact"
    write_artifact(path, b"payload", "region")
    attack(common / "above")
    with pytest.raises(ArtifactError, match="can be exchanged by"):
        read_artifact(path, "region")


# PyTorch's own folder in the system's for temporary files: made first by somebody else.

LIBRARY = """
#include <fcntl.h>
#include <unistd.h>
__attribute__((constructor)) static void ran(void) {
    int file = open("MARK", O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (file >= 0) { if (write(file, "ran\\n", 4)) {} close(file); }
}
"""


def library(mark, folder):
    """A shared library that leaves a line in ``mark`` when it is loaded."""
    source = folder / "library.c"
    source.write_text(LIBRARY.replace("MARK", str(mark)))
    subprocess.run(["gcc", "-shared", "-fPIC", str(source), "-o", str(folder / "library.so")], check=True)
    return (folder / "library.so").read_bytes()


def folders_of_pytorch(common, monkeypatch):
    """Have this process take a folder in ``common`` for that of PyTorch."""
    from torch._inductor import codecache

    folder = common / "torchinductor_victim"
    monkeypatch.setattr(codecache, "_HEADER_DIR", str(folder / "precompiled_headers"))
    monkeypatch.setattr(codecache, "_HEADER_LOCK_DIR", str(folder / "precompiled_headers" / "locks"))
    return folder


HOW = {
    "his folder": lambda folder: as_attacker(folder.mkdir),
    "an open folder": lambda folder: (folder.mkdir(), folder.chmod(0o777)),
    "open folders in it": lambda folder: [
        (folder.mkdir(exist_ok=True), (folder / name).mkdir(), (folder / name).chmod(0o777))
        for name in ("processor", "precompiled_headers")
    ],
}


def planted(folder, how, files, closed):
    """Plant ``files``, by names below ``folder``; return how many are there."""
    how(folder)
    done = [as_attacker(copy, content, folder / name) for name, content in files.items()]
    if closed:
        for place in (folder, *(folder / name for name in ("processor", "precompiled_headers"))):
            if place.is_dir() and place.stat().st_uid == 0:
                place.chmod(0o755)
    return sum(done)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed later"])
@pytest.mark.parametrize("how", HOW.values(), ids=HOW)
@pytest.mark.parametrize("kept", ["store", "off"])
def test_checks_of_the_processor_and_headers(common, tmp_path, monkeypatch, how, closed, kept):
    """Both are looked for by names that anybody can work out, beforehand."""
    from torch._inductor import codecache, cpu_vec_isa
    from torch._inductor.utils import fresh_cache

    from pytest_regional._torch.cpp import headers_kept_in, processor_checked_in

    isa = cpu_vec_isa.VecAVX2()
    code, header = 'extern "C" int one() { return 1; }', ("climits", "g++ -O1")
    settings = {"device_type": "cpu", "vec_isa": cpu_vec_isa.invalid_vec_isa}
    clean = tmp_path / "clean"
    with fresh_cache(), processor_checked_in(clean / "processor"), headers_kept_in(clean / "precompiled_headers"):
        assert isa.check_build(code)
        codecache._precompile_header(*header, **settings)
    names = [path.relative_to(clean) for path in clean.rglob("*.*") if path.suffix in (".so", ".h", ".gch")]
    assert len(names) == 3
    mark = common / "ran"
    contents = {".so": library(mark, tmp_path), ".h": b"#define ONE 2\n", ".gch": b"gpch"}
    folder = folders_of_pytorch(common, monkeypatch)
    assert planted(folder, how, {name: contents[name.suffix] for name in names}, closed) == 3
    store = prepared(tmp_path / "store")
    monkeypatch.setenv("PYTEST_REGIONAL_KERNEL_STORE", "off")
    with fresh_cache(), kernels_kept(None if kept == "off" else store):
        assert isa.check_build(code)
        found = codecache._precompile_header(*header, **settings)
    assert not mark.exists(), "the other user's library was loaded"
    assert found is None or folder not in Path(found).parents
    assert (found is None) == (kept == "off"), "the store takes the place of the folder that is not ours"


def test_our_own_copy_of_pytorchs_directory(common, tmp_path, monkeypatch):
    from pytest_regional._torch import cpp

    folder = folders_of_pytorch(common, monkeypatch)
    with warnings.catch_warnings(), kernels_kept(prepared(tmp_path / "store")):
        warnings.simplefilter("error")
        assert cpp.default_headers_folder() == folder
    assert sorted(path.name for path in folder.iterdir()) == ["precompiled_headers", "processor"]
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o700}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("his", [True, False])
def test_scripts_of_findings_read_no_header_of_his(common, monkeypatch, his):
    """They run without this package, and PyTorch's own look-up is all there is."""
    from pytest_regional.fuzz.findings import scripts

    folder, script = common / "torchinductor_victim", common / "script.py"
    variable = "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"
    script.write_text(f"import os, sys\nprint('headers', os.environ.get({variable!r}))\nsys.exit(1)\n")
    monkeypatch.setattr("torch._inductor.runtime.runtime_utils.default_cache_dir", lambda: str(folder))
    if his:
        assert as_attacker(copy, b"", folder / "precompiled_headers" / "one.h")
    assert scripts.shows(script, "headers 0\n" if his else "headers None\n")


def test_the_twin_of_the_other_users_library_which_would_run(common, tmp_path):
    """That a planted library leaves its mark, where nothing looks whose it is."""
    from torch._inductor import cpu_vec_isa
    from torch._inductor.utils import fresh_cache

    from pytest_regional._torch.cpp import processor_checked_in

    isa, mark = cpu_vec_isa.VecAVX2(), common / "ran"
    for folder in (tmp_path / "clean", common / "his"):
        with fresh_cache(), processor_checked_in(folder):
            assert isa.check_build('extern "C" int one() { return 1; }')
        if folder.parent == tmp_path:
            assert not mark.exists()
            (name,) = [path.name for path in folder.glob("*.so")]
            assert as_attacker(copy, library(mark, tmp_path), common / "his" / name)
    assert mark.exists()
