"""Faults of configs: settings of a region hold somewhere else, or nowhere."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from pytest_regional._torch.config import inductor_config
from tests.faults.planting import Mutant, Patch
from tests.faults.rewriting import is_backward

CONFIGS = "suites/regions/test_configs.py"


def _left_behind(original: Any) -> Any:
    @contextlib.contextmanager
    def settings(configs: Mapping[str, Any], name: str) -> Iterator[None]:
        with original({}, name):
            for setting, value in configs.items():
                setattr(inductor_config(), setting, value)
            yield

    return settings


def _dropped(original: Any) -> Any:
    return lambda configs, name: original({}, name)


def _of_the_region_before(original: Any) -> Any:
    before: dict[str, Any] = {}

    def settings(configs: Mapping[str, Any], name: str) -> Any:
        nonlocal before
        chosen, before = before, dict(configs)
        return original(chosen, name)

    return settings


def _not_in_backward(original: Any) -> Any:
    def compile_module(request: Any, module: Any) -> Any:
        if not is_backward(request.partition.nodes):
            return original(request, module)
        settings = dict(request.key.settings)
        request.key.settings.clear()
        try:
            return original(request, module)
        finally:
            request.key.settings.update(settings)

    return compile_module


def _first_alone(original: Any) -> Any:
    return lambda configs, name: original(dict(list(configs.items())[:1]), name)


def _fault(name: str, sentence: str, target: str, change: Any) -> Mutant:
    return Mutant(name, sentence, ("configs",), (CONFIGS,), (Patch(target, change),))


SETTINGS = "compile_regions:region_compile_settings"

FAULTS = (
    _fault("config_leaked", "configs of a region hold for all that compiles after it", SETTINGS, _left_behind),
    _fault("config_dropped", "configs of regions are read and not used", SETTINGS, _dropped),
    _fault(
        "config_of_another", "a region is compiled with the configs of the one before", SETTINGS, _of_the_region_before
    ),
    _fault(
        "config_not_in_backward",
        "configs hold in forward graphs alone",
        "compile_regions:_compile_module",
        _not_in_backward,
    ),
    _fault("config_first_alone", "of several configs of a region the first alone holds", SETTINGS, _first_alone),
)
