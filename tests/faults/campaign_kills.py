"""What a campaign loses when its processes are killed: ``python -m tests.faults.campaign_kills --kills 20``.

``pytest-regional fuzz`` checks a number of programs on two processes, against a backend with a planted fault, while
SIGKILL ends one of the processes, or the command, at random moments; the command is then started again. In the end each
shard has to be finished, each program counted once, and no finding there that a run without kills does not have, or the
other way around. A finding is what it says that happens: how far a program is reduced depends on time.

``--ray`` checks on a Ray cluster of two nodes on this machine instead, one of which is lost once the first shards are
finished, and replaced.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def faulty(gm: Any, inputs: Any) -> Any:
    """Compile with AOTAutograd alone, and negate all results where the graph holds a sine: the planted fault."""
    from torch._dynamo.backends.debugging import aot_eager

    compiled = aot_eager(gm, inputs)
    if "sin" not in gm.code:
        return compiled
    return lambda *args: tuple(-value for value in compiled(*args))


def started(findings: Path, programs: int, *more: str) -> subprocess.Popen[bytes]:
    """Start the command."""
    options = [
        "--backend=tests.faults.campaign_kills:faulty",
        f"--budget={programs}",
        "--workers=2",
        "--seed=11",
        "--no-blame",
    ]
    command = [sys.executable, "-m", "pytest_regional", "fuzz", *options, f"--findings={findings}", *more]
    with (findings.parent / f"{findings.name}.txt").open("ab") as log:
        return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)


def with_kills(findings: Path, programs: int, kills: int, seconds: float) -> list[str]:
    """Run the campaign to its end, killed so many times; return what was killed."""
    chance, killed = random.Random(0), []
    command = started(findings, programs)
    while len(killed) < kills and command.poll() is None:
        time.sleep(chance.uniform(0.0, seconds))
        markers = list(findings.glob("campaigns/*/checking/*.json"))
        if not markers:
            continue
        if chance.random() < 0.25:
            command.kill()
            command.wait()
            killed.append("command")
            command = started(findings, programs)
            while any(marker.exists() for marker in markers) and command.poll() is None:
                time.sleep(0.1)  # those of processes that are gone
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(chance.choice(markers).stem.rpartition("-")[2]), signal.SIGKILL)
                killed.append("process")
    command.wait()
    return killed


def with_lost_node(findings: Path, programs: int) -> list[str]:
    """Run the campaign to its end on two nodes, of which one is removed and replaced; return what was removed."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    node = cluster.add_node(num_cpus=1)
    command = started(findings, programs, f"--cluster={cluster.address}")
    while not list(findings.glob("campaigns/*/shard-*.json")) and command.poll() is None:
        time.sleep(0.5)
    cluster.remove_node(node, allow_graceful=False)
    cluster.add_node(num_cpus=1)
    command.wait()
    cluster.shutdown()
    return ["node"]


def seen(folder: Path) -> set[str]:
    """Return what the findings in a folder say that happens."""
    found = [json.loads(path.read_bytes()) for path in folder.glob("*.json")]
    return {f"{one['oracle']} ({one['stage']}): {one['origin']}" for one in found}


def main() -> int:
    """Run the trial, and the same without kills."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, metavar="N")
    parser.add_argument("--programs", type=int, default=120, metavar="N")
    parser.add_argument("--seconds", type=float, default=10.0, metavar="S", help="between two kills at most")
    parser.add_argument("--ray", action="store_true", help="on a Ray cluster of two nodes")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="regional-kills-") as temporary:
        disturbed, quiet = Path(temporary, "disturbed"), Path(temporary, "quiet")
        if asked.ray:
            killed = with_lost_node(disturbed, asked.programs)
        else:
            killed = with_kills(disturbed, asked.programs, asked.kills, asked.seconds)
        started(quiet, asked.programs).wait()
        lost = False
        for folder in (disturbed, quiet):
            shards = [json.loads(path.read_bytes()) for path in folder.glob("campaigns/*/shard-*.json")]
            counts = {name: sum(one[name] for one in shards) for name in ("done", "examples", "skipped_known")}
            crashes = len(list(folder.glob("crashes/*.json")))
            print(f"{folder.name}: {counts}, {len(list(folder.glob('*.json')))} findings, {crashes} crashes")
            lost |= counts["done"] != asked.programs
        print("killed:", ", ".join(f"{killed.count(kind)} times a {kind}" for kind in dict.fromkeys(killed)))
        differ = seen(disturbed) ^ seen(quiet)
        print("the same findings" if not differ else f"only in one of them: {sorted(differ)}")
        return int(lost or bool(differ))


if __name__ == "__main__":
    sys.exit(main())
