"""The law ``configs``: each region compile sees the Inductor settings of its annotation, and nothing keeps them."""

from __future__ import annotations

from typing import Any

from pytest_regional.fuzz.oracles.law import Law, NoClaim
from pytest_regional.fuzz.oracles.trial import Trial
from pytest_regional.fuzz.oracles.watching import WatchedGraph, WatchedPartition


def check_configs(trial: Trial) -> None:
    """Raise where a partition was compiled under other settings, or where settings are others afterwards."""
    run = trial.cold
    changed = [name for name, value in run.settings_before.items() if run.settings_after[name] != value]
    if changed:
        raise trial.broken(
            "configs", "run", f"after the compile {_named(changed)} is not what it was", origin="settings leak"
        )
    graphs = [graph for graph in run.watched.graphs if graph.partitions]
    if not graphs:
        raise NoClaim("no region was handed to Inductor")
    for graph in graphs:
        for partition in graph.partitions:
            _check_partition(trial, graph, partition)
        _check_calls(trial, graph)


def _check_partition(trial: Trial, graph: WatchedGraph, partition: WatchedPartition) -> None:
    for asked in partition.asked or ({},):
        expected = {**graph.settings, **{name: asked[name] for name in asked if name in partition.seen}}
        wrong = [name for name, value in expected.items() if partition.seen[name] != value]
        if wrong:
            name = wrong[0]
            region = partition.regions[0][0] if partition.regions else None
            raise trial.broken(
                "configs",
                "backward" if graph.kind == "backward" else "compile",
                f"a partition of region {region!r} of the {graph.kind} graph was compiled with "
                f"{name}={partition.seen[name]!r}; {_reason(asked, name)} {expected[name]!r}",
                origin=f"a setting that the annotation {'names' if name in asked else 'does not name'}",
                region=region,
            )


def _check_calls(trial: Trial, graph: WatchedGraph) -> None:
    """Judge whose code the regions of the result call: of several that are equal one may have been compiled for all."""
    for artifact, region, asked in zip(graph.calls, graph.called, graph.configs, strict=True):
        partition = trial.cold.watched.artifacts.get(artifact)
        if asked is None or partition is None:
            continue
        expected = {**graph.settings, **asked}
        wrong = [name for name in partition.seen if partition.seen[name] != expected.get(name)]
        if wrong:
            raise trial.broken(
                "configs",
                "backward" if graph.kind == "backward" else "compile",
                f"region {region!r} of the {graph.kind} graph calls what was compiled with "
                f"{wrong[0]}={partition.seen[wrong[0]]!r}; {_reason(asked, wrong[0])} {expected.get(wrong[0])!r}",
                origin="a call of code that has other settings",
                region=region,
            )


def _reason(asked: dict[str, Any], name: str) -> str:
    return "its annotation says" if name in asked else "its annotation says nothing of it, and outside it is"


def _named(names: list[str]) -> str:
    return ", ".join(f"torch._inductor.config.{name}" for name in names[:3])


LAWS = (
    Law(
        "configs",
        "Each region compile, forward and backward, sees the Inductor settings of its annotation, the rest as outside.",
        check_configs,
        requires=("regions", "region_configs"),
    ),
)
