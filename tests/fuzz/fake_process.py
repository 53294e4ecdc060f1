"""A process of a campaign without PyTorch: ``FAKE_LIVES`` is a file with a word for each process, the first one first.

* ``works``: it does all that is left; ``grows``: a program of each shard; ``cannot``: nothing;
  ``waits``: nothing until it is stopped; ``starts``: the same, before it expects that.
* A signal or an exit status: it dies so of its first program; after ``early``, before it checks any.
"""

import os
import pickle
import shutil
import signal
import sys
import threading
from pathlib import Path

from pytest_regional._base.files import write_whole
from pytest_regional._base.limits import crash_marker
from pytest_regional.fuzz.shards import CANNOT, DONE, GROWN, CampaignFolder, Progress


def life():
    file = Path(os.environ["FAKE_LIVES"])
    first, *others = file.read_text().split() or ["works"]
    write_whole(file, " ".join(others).encode())
    return first


def main():
    work, does = pickle.load(sys.stdin.buffer), life()
    folder = CampaignFolder(work.findings, work.identity)
    if does == "cannot":
        print("RegionalError: there is no such backend")
        return CANNOT
    if does in ("waits", "starts"):
        if does == "waits":
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(DONE))
        threading.Event().wait(60)
    for shard, size in folder.left(work.shards, work.programs):
        if does == "works":
            folder.write(shard, Progress(done=size, examples=size))
        elif does == "grows":
            folder.write(shard, Progress(done=folder.progress(shard).done + 1, examples=1))
        else:
            if not does.startswith("early-"):
                shutil.copy(os.environ["FAKE_PROGRAM"], crash_marker(folder.path, f"{shard:05}"))
            how = does.removeprefix("early-")
            if how.isdigit():
                print("ZeroDivisionError: by zero")
                return int(how)
            os.kill(os.getpid(), signal.Signals[how])
    return GROWN if does == "grows" else DONE


if __name__ == "__main__":
    sys.exit(main())
