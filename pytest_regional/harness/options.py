"""How one program is compiled: what the marker says, what ``regional.compile`` overrides; and options of the run."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from pytest_regional._base.errors import RegionalValueError
from pytest_regional._base.text import unknown_name
from pytest_regional._torch import config
from pytest_regional._torch.config import TIMINGS


@dataclass(frozen=True, kw_only=True)
class HarnessOptions:
    """Options of a run that the harness reads. The plugin's settings are a subclass and are handed down whole.

    Attributes:
        blame: how far a failure is followed up: ``"off"``, ``"region"`` or ``"deep:300"``; where it is ``None``, a
            failed comparison with eager to the region, and findings of fuzz tests to the step.
        verify: seconds for each kernel of an emulated GPU that is to be verified for all sizes; ``None`` where none is.
    """

    blame: str | None = None
    verify: float | None = None


@dataclass(frozen=True)
class CompileOptions:
    """Everything that decides how ``regional.compile`` compiles."""

    dynamic: bool | None = None  # as ``torch.compile``'s
    fullgraph: bool = True  # as ``torch.compile``'s
    #: Inductor settings held while this program compiles, its backward included
    inductor_configs: Mapping[str, Any] = field(default_factory=dict)
    pre_grad_pass: Any = None  # a pass, or a list of passes, put into Inductor's ``pre_grad_custom_pass``
    #: ``"early"``, ``"late"``, ``"default"``, or ``None`` for what is configured
    pre_grad_pass_timing: str | None = None
    fallback_random: bool = False  # make Inductor draw random numbers as eager does
    #: value of the backend's variant ``partitioner``; ``None`` for what it does by itself
    partitioner: str | None = None

    def __post_init__(self) -> None:
        """Refuse values that PyTorch would accept silently."""
        if self.pre_grad_pass_timing is not None and self.pre_grad_pass_timing not in TIMINGS:
            raise RegionalValueError(unknown_name("pre_grad_pass_timing", self.pre_grad_pass_timing, TIMINGS))
        if not isinstance(self.inductor_configs, Mapping):
            raise RegionalValueError(
                f"inductor_configs must be a dict of Inductor settings, not {self.inductor_configs!r}"
            )

    def override(self, **values: Any) -> CompileOptions:
        """Return a copy in which every value that is not ``None`` replaces this one's."""
        given = {name: value for name, value in values.items() if value is not None}
        return replace(self, **given)

    def identity(self) -> tuple[Any, ...]:
        """Return a hashable identity: two options with the same one may share a Dynamo backend object."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        passes = self.pre_grad_pass
        values["pre_grad_pass"] = tuple(map(id, passes)) if isinstance(passes, list | tuple) else id(passes)
        values["inductor_configs"] = tuple(sorted((key, repr(value)) for key, value in self.inductor_configs.items()))
        return tuple(values.items())

    @contextlib.contextmanager
    def scope(self, taken: frozenset[str] = frozenset()) -> Iterator[None]:
        """Hold the Inductor settings of these options, but for those ``taken`` by a backend that Inductor has not."""
        self.require_settings()
        settings = dict(self.inductor_configs)
        if self.fallback_random:
            settings["fallback_random"] = True
        if self.pre_grad_pass is not None:
            settings["pre_grad_custom_pass"] = self.pre_grad_pass
        if self.pre_grad_pass_timing is not None and not self.backend_keywords(taken):
            if "pre_grad_pass_timing" not in config.config_names(config.INDUCTOR):
                raise RegionalValueError(
                    "this torch has no pre_grad_pass_timing (it came with 2.12), and the backend does not take it as "
                    "its own option: leave it out, use a newer torch, or name it in the BackendSpec's compile_options"
                )
            settings["pre_grad_pass_timing"] = self.pre_grad_pass_timing
        with config.patched_config(config.INDUCTOR, settings):
            yield

    def backend_keywords(self, taken: frozenset[str]) -> dict[str, Any]:
        """Return the keywords to call the backend with: its ``options``, for what Inductor has no setting for."""
        name = "pre_grad_pass_timing"
        if self.pre_grad_pass_timing is None or name not in taken or name in config.config_names(config.INDUCTOR):
            return {}
        return {"options": {name: self.pre_grad_pass_timing}}

    def require_settings(self) -> None:
        """Check the Inductor settings, before anything is compiled."""
        known = config.config_names(config.INDUCTOR)
        for name, value in self.inductor_configs.items():
            if name not in known:
                # The few worth listing in a message: all 600 would hide the nearest.
                near = difflib.get_close_matches(name, sorted(known), n=8, cutoff=0.4) or sorted(known)[:8]
                raise RegionalValueError(unknown_name("Inductor setting", name, near))
            if isinstance(value, str) and config.inductor_config_type(name) is bool:
                raise RegionalValueError(f"inductor_configs: {name} is True or False, not {value!r}")
