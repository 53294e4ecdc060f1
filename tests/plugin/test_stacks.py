"""Which threads of a dump are shown first, and which frames are left out."""

from __future__ import annotations

import re
import subprocess
import sys
import threading

from pytest_regional._base import processes

DUMP = """\
Thread 0x00007f02 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait
  File "/venv/pytest_regional/report/progress.py", line 128 in _write
  File "/usr/lib/python3.11/threading.py", line 982 in run

Thread 0x00007f03 (most recent call first):
  File "/home/a/model.py", line 3 in beside
  File "/usr/lib/python3.11/threading.py", line 982 in run

Current thread 0x00007f01 (most recent call first):
  File "/venv/torch/_inductor/codecache.py", line 99 in load
  File "/home/a/test_model.py", line 12 in hangs
  File "/venv/pytest_regional/harness/_child.py", line 53 in _call
  File "<frozen runpy>", line 88 in _run_code
"""


def test_the_thread_of_the_test_comes_first_and_the_plugins_last():
    headers = re.findall(r"0x\w+", processes.ordered(DUMP))
    assert headers == ["0x00007f01", "0x00007f03", "0x00007f02"]


def test_frames_that_lead_to_the_test_are_left_out():
    first = processes.ordered(DUMP).split("Thread")[0]
    assert "line 12 in hangs" in first
    assert "_child" not in first
    assert "runpy" not in first


def test_a_thread_of_the_plugin_alone_keeps_its_frames():
    assert "in _write" in processes.ordered(DUMP)


def test_nothing_is_lost_of_what_is_no_dump():
    assert processes.ordered("Fatal Python error: Segmentation fault\n") == "Fatal Python error: Segmentation fault\n"


def test_stacks_of_this_process_begin_at_the_test_and_name_threads():
    go_on = threading.Event()
    thread = threading.Thread(target=go_on.wait, name="mine")
    thread.start()
    try:
        text = processes.of_threads(sys._getframe())
    finally:
        go_on.set()
        thread.join()
    assert text.startswith("Thread MainThread:\n")
    assert "pytest_pyfunc_call" not in text.partition("Thread mine:")[0]
    assert "Thread mine:" in text


def test_a_process_without_a_handler_is_left_alone():
    process = subprocess.Popen(["sleep", "65"])
    try:
        assert processes.of_processes(processes.with_all_below(process.pid)) == ""
        assert process.poll() is None
    finally:
        processes.end([process.pid])
        process.wait()
