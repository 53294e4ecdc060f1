"""``pytest-regional fuzz --status``: what it shows of a store, and that it leaves the store as it is."""

import io
import time
from pathlib import Path

import pytest
from rich.console import Console

from pytest_regional.command_line import fuzz_status, main
from pytest_regional.fuzz.store import open_store
from pytest_regional.fuzz.workers.records import WorkerRecord
from pytest_regional.fuzz.workers.status import StatusReader
from tests.report.campaigns import PLAN, filled


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return open_store("store")


def files():
    return sorted(str(path) for path in Path().rglob("*"))


def test_it_shows_parts_workers_and_findings(store, capsys):
    filled(store, findings=3)
    before = files()

    assert main(["fuzz", "--status=store"]) == 0

    shown = capsys.readouterr().out
    assert "7000 programs" in shown
    assert "inductor, native     3500      450               15 (0.4%)         100 (2.8%)" in shown
    assert "host-0  2.13         torch 2.13.0, triton 3.7.1  700 programs, inductor, native: batch 400" in shown
    assert "not checked yet  still fails  fixed" in shown
    assert "host-8 (2.13) died of a program, ended by SIGSEGV" in shown
    assert files() == before


def test_many_refused_programs_are_a_warning(store, capsys):
    filled(store, refused=100)

    main(["fuzz", "--status=store"])

    assert "warning: eager refuses 1000 of 7000 programs, more than 1%" in capsys.readouterr().out


def test_it_says_what_waits_and_who_is_silent(store, capsys):
    filled(store, workers=1)
    store.write("postponed", "a", {}, version=0)
    entry = store.read("workers", "host-0")
    store.write("workers", "host-0", {**entry.data, "alive": time.time() - 40}, version=entry.version)

    main(["fuzz", "--status=store"])

    shown = capsys.readouterr().out
    assert ", 1 failure being reduced, 1 failure left for later" in shown
    assert "; no sign of life for 40" in shown


def test_a_worker_that_was_seen_just_now_is_not_silent(store, capsys):
    filled(store)

    main(["fuzz", "--status=store"])

    assert "sign of life" not in capsys.readouterr().out


def test_without_a_url_it_is_the_campaign_of_the_directory(store, capsys):
    filled(open_store("regional-findings/store/01234567"))

    assert main(["fuzz", "--status"]) == 0

    assert "7000 programs" in capsys.readouterr().out


def test_without_a_url_there_is_no_campaign_or_one_of_several(store, capsys):
    assert main(["fuzz", "--status", "--findings=found"]) == 2
    assert "--status: there is no campaign in found: give --findings=DIR, or --status=URL." in capsys.readouterr().err

    for name in ("a", "b"):
        filled(open_store(f"found/store/{name}"))

    assert main(["fuzz", "--status", "--findings=found"]) == 2
    says = "--status: found has several campaigns: give one of found/store/a, found/store/b."
    assert says in capsys.readouterr().err


def test_a_store_without_a_campaign(store, capsys):
    assert main(["fuzz", "--status=nowhere"]) == 2

    assert "nowhere holds no campaign" in capsys.readouterr().err
    assert not Path("nowhere").exists()


@pytest.mark.parametrize("url", ["http://host", "redis://"], ids=["scheme", "no host"])
def test_a_url_that_is_none(store, capsys, url):
    assert main(["fuzz", f"--status={url}"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_page_is_written_once(store):
    filled(store, findings=1)

    assert main(["fuzz", "--status=store", "--page=page.html"]) == 0

    assert "http-equiv" not in Path("page.html").read_text()


def test_a_page_that_cannot_be_written(store, capsys):
    filled(store, findings=1)

    assert main(["fuzz", "--status=store", "--page=no/page.html"]) == 2
    assert "--page=no/page.html: it cannot be written: No such file or directory." in capsys.readouterr().err


def test_it_is_watched_until_ctrl_c(store, monkeypatch):
    filled(store, findings=1)
    seen = []

    def sleep(seconds):
        seen.append("http-equiv" in Path("page.html").read_text())
        if len(seen) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(fuzz_status.time, "sleep", sleep)

    assert main(["fuzz", "--status=store", "--watch", "--page=page.html"]) == 0

    assert seen == [True, True]
    assert "http-equiv" not in Path("page.html").read_text()


def test_texts_of_strangers_do_nothing_on_the_terminal(store):
    filled(store, findings=0)
    title = "[red]red[/red] \x1b[31m\nwarning: forged"
    data = {"finding": {}, "script": "", "title": title, "size": 1, "environment": "2.13", "found": 1e9}
    store.write("findings", "a", data, version=0)
    record = WorkerRecord("[/x]", "host", 1, "x")
    store.write("workers", "b", record.to_data(), version=0)
    output = io.StringIO()

    Console(file=output, width=200).print(fuzz_status.picture(StatusReader(store, PLAN).read()))

    assert "[red]red[/red]" in output.getvalue()
    assert "\nwarning" not in output.getvalue()
    assert "\x1b" not in output.getvalue()
