"""The types of watched state: one value, entries of dictionaries, functions of modules.

Each has three methods: ``read()`` returns the current state, ``differences(before)`` yields a :class:`Leak` for each
difference, ``restore(before)`` restores it.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from operator import is_
from types import ModuleType
from typing import Any, Protocol

from pytest_regional._base.text import masked_urls
from pytest_regional._torch.process_state import DYNAMO_MODULES

#: Prefix of the names of environment variables.
VARIABLE = "environment variable "


@dataclass(frozen=True, repr=False)
class Leak:
    """One thing that a test left changed.

    Its text omits the values of environment variables, which may be secret.
    """

    name: str  # the setting
    before: Any  # its value before the test
    after: Any  # its value after the test
    restored: bool = True  # whether it was restored; ``False`` if it could only be reported
    unrestorable: bool = False  # whether later results of this process cannot be trusted, since its state differs

    def __str__(self) -> str:
        if self.name.startswith(VARIABLE):
            became = "removed" if self.after is MISSING else "set" if self.before is MISSING else "changed"
            return f"{self.name}: {became}"
        shown = [masked_urls(repr(value)) for value in (self.before, self.after)]
        return f"{self.name}: " + " -> ".join(text if len(text) <= 80 else text[:77] + "..." for text in shown)

    def __repr__(self) -> str:
        return f"<Leak {self}>"


class _Missing:
    def __repr__(self) -> str:
        return "(not set)"


MISSING = _Missing()


class ImportedModules(frozenset[str]):
    """The names of the modules that were imported at some moment."""


_imported = ImportedModules()


def imported_modules() -> ImportedModules:
    """Return the names of the imported modules: the same object while their number is the same."""
    global _imported
    if len(_imported) != len(sys.modules):
        _imported = ImportedModules(sys.modules)
    return _imported


def changed_alike(value: Any, start: Any, now: Any) -> Any:
    """Return ``value``, an earlier result of ``read()``, with the changes between two later ones.

    It is what would have been read if what happened between ``start`` and ``now`` had happened before.
    """
    if isinstance(value, ImportedModules) or _unchanged(start, now):
        return value
    if isinstance(value, dict):
        changed = {key: new for key, new in now.items() if key not in start or not _unchanged(start[key], new)}
        kept = {key: old for key, old in value.items() if key in now or key not in start}
        return kept | {key: changed_alike(kept.get(key), start.get(key), new) for key, new in changed.items()}
    if isinstance(value, set | frozenset):
        return (value - (start - now)) | (now - start)
    if type(value) is tuple and isinstance(now, tuple) and len(value) == len(start) == len(now):
        return tuple(map(changed_alike, value, start, now))
    if isinstance(value, list) and not _unchanged(value, start):
        return [*(each for each in value if each not in start or each in now), *(x for x in now if x not in start)]
    return now


def _unchanged(one: Any, other: Any) -> bool:
    """Say whether two values are equal; arrays have no single answer."""
    if one is other:
        return True
    if type(one) is not type(other) or hasattr(one, "__array__"):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_unchanged, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_unchanged(value, other[key]) for key, value in one.items())
    return bool(one == other)


class Watched(Protocol):
    """Some of the state of this process."""

    def read(self) -> Any:
        """Return the current state."""

    def differences(self, before: Any) -> Iterable[Leak]:
        """Yield the differences from ``before``, an earlier result of :meth:`read`."""

    def restore(self, before: Any) -> None:
        """Restore ``before``."""


def same_value(one: Any, other: Any) -> bool:
    """Say whether two values of one setting are equal."""
    if one is other:
        return True
    return type(one) is type(other) and bool(one == other)


def same_object(one: Any, other: Any) -> bool:
    """Say whether two functions are identical, or both pytest's or this plugin's, which differ between phases."""
    if one is other:
        return True
    modules = (str(getattr(value, "__module__", None) or type(value).__module__) for value in (one, other))
    runners = ("_pytest", "pytest", "pytest_regional", "hypothesis", "xdist")
    return all(module.partition(".")[0] in runners for module in modules)


@dataclass(frozen=True)
class State:
    """One setting: its name in reports, what reads and sets it (``None`` if nothing can), and when values are equal."""

    name: str
    reader: Callable[[], Any]
    writer: Callable[[Any], object] | None
    same: Callable[[Any, Any], bool] = same_value

    def read(self) -> Any:
        """Return the value."""
        return self.reader()

    def differences(self, before: Any) -> Iterator[Leak]:
        """Yield the setting if its value differs."""
        now = self.reader()
        if not self.same(before, now):
            yield Leak(self.name, before, now)

    def restore(self, before: Any) -> None:
        """Write the value."""
        if self.writer is not None:
            self.writer(before)


def attribute(module: ModuleType, name: str) -> State:
    """Return a module variable that holds a function or an object."""
    return State(
        f"{module.__name__}.{name}",
        lambda: getattr(module, name),
        lambda value: setattr(module, name, value),
        same_object,
    )


def set_by_imports(name: str, read: Callable[[], Any], write: Callable[[Any], None]) -> State:
    """Return a setting that packages change when they are imported, which is no leak then."""
    return State(
        name,
        lambda: (read(), imported_modules()),
        lambda wanted: write(wanted[0]),
        lambda before, now: before[0] == now[0] or before[1] is not now[1],
    )


@dataclass(frozen=True)
class Settings:
    """Settings by name, such as those of a configuration module or the environment's variables.

    ``prefix`` stands before each name in reports. The writer sets one setting; it gets :data:`MISSING` for one to be
    removed. ``ignored`` says which are never a leak.
    """

    prefix: str
    reader: Callable[[], Mapping[str, Any]]
    writer: Callable[[str, Any], None]
    ignored: Callable[[str], bool] = lambda name: False
    same: Callable[[Any, Any], bool] = same_value

    def read(self) -> Mapping[str, Any]:
        """Return all values."""
        return self.reader()

    def differences(self, before: Mapping[str, Any]) -> Iterator[Leak]:
        """Yield each setting whose value differs, in the order of names."""
        now = self.reader()
        changed = [key for key in {*before, *now} if not self.same(before.get(key, MISSING), now.get(key, MISSING))]
        changed.sort()  # not by the builtin, which a test may have replaced
        for key in changed:
            if not self.ignored(key):
                yield Leak(f"{self.prefix}{key}", before.get(key, MISSING), now.get(key, MISSING))

    def restore(self, before: Mapping[str, Any]) -> None:
        """Write the values that differ."""
        for leak in list(self.differences(before)):
            self.writer(leak.name.removeprefix(self.prefix), leak.before)


#: Number of changes of one dictionary or module that are reported one by one.
_NAMED = 5


@dataclass(frozen=True)
class Contents:
    """The entries of several dictionaries, compared by identity."""

    holders: Callable[[], Mapping[str, Any]]  # returns the dictionaries (not copies) by name
    #: says whether an added key and value are a test's; imports and lookups add entries as well
    is_a_leak: Callable[[Any, Any, frozenset[str]], bool]
    write: Callable[[Any, Any, Any], None]  # sets or, for :data:`MISSING`, removes one entry
    #: says whether a replaced or removed entry is a test's change, given old and new value
    counts: Callable[[Any, Any, frozenset[str]], bool] = lambda was, now, imported: True

    def read(self) -> tuple[frozenset[str], dict[str, dict[Any, Any]]]:
        """Return copies, and the imported modules."""
        return imported_modules(), {name: dict(_entries(holder)) for name, holder in self.holders().items()}

    def _changed(self, before: Any) -> Iterator[tuple[str, Any, dict[Any, tuple[Any, Any]]]]:
        imported, copies = before
        for name, holder in self.holders().items():
            copy, now = copies.get(name), _entries(holder)
            if copy is None or (len(copy) == len(now) and all(map(is_, copy.values(), now.values()))):
                continue
            changed = {
                key: (value, now.get(key, MISSING))
                for key, value in copy.items()
                if not same_object(value, now.get(key, MISSING)) and self.counts(value, now.get(key, MISSING), imported)
            }
            for key, value in now.items():
                if key not in copy and self.is_a_leak(key, value, imported):
                    changed[key] = (MISSING, value)
            if changed:
                yield name, holder, changed

    def differences(self, before: Any) -> Iterator[Leak]:
        """Yield the entries that were added, removed or replaced."""
        for name, _, changed in self._changed(before):
            for key, (was, now) in list(changed.items())[:_NAMED]:
                is_name = isinstance(key, str) and key.isidentifier()
                yield Leak(f"{name.replace(':', '.')}.{key}" if is_name else f"{name}[{key!s}]", was, now)
            if len(changed) > _NAMED:
                yield Leak(f"{len(changed) - _NAMED} more of {name}", "as found", "changed")

    def restore(self, before: Any) -> None:
        """Restore removed and replaced entries, and remove added ones."""
        for _, holder, changed in self._changed(before):
            for key, (was, _) in changed.items():
                self.write(holder, key, was)


def _entries(holder: Any) -> Mapping[Any, Any]:
    """Return the dictionary itself, or that of a module or class."""
    return holder if isinstance(holder, dict) else vars(holder)


def set_entry(holder: MutableMapping[Any, Any], key: Any, value: Any) -> None:
    """Set or remove an entry of a dictionary."""
    if value is MISSING:
        holder.pop(key, None)
    else:
        holder[key] = value


def set_attribute(holder: Any, name: str, value: Any) -> None:
    """Set or remove an attribute of a module or class."""
    if value is MISSING:
        delattr(holder, name)
    else:
        setattr(holder, name, value)


def is_patched(was: Any, now: Any, imported: frozenset[str]) -> bool:
    """Say whether a test replaced a variable that held a function, a class or an object.

    Modules patch others when they are imported, and Dynamo patches ``torch.nn.Module`` at its first use.
    """
    if was is None or isinstance(was, (bool, int, float, str, bytes, list, tuple, dict, set)):
        return False
    module, name = str(getattr(now, "__module__", "")), str(getattr(now, "__qualname__", ""))
    by_an_import = module in sys.modules and module not in imported
    return not by_an_import and not (module.startswith(DYNAMO_MODULES) and "<locals>" in name)


def is_a_tests(key: Any, value: Any, imported: frozenset[str]) -> bool:
    """Say whether an added entry is a test's code: not of an installed package, nor of a module just imported.

    Packages register entries when they are imported, and some at first use: these stay.
    """
    return any(_is_code_of_a_test(each, imported) for each in (key, value))


def _is_code_of_a_test(value: Any, imported: frozenset[str]) -> bool:
    while not isinstance(value, type) and hasattr(value, "__wrapped__"):
        value = value.__wrapped__
    value = getattr(value, "func", getattr(value, "__func__", value))
    code = value if isinstance(value, type) or hasattr(value, "__code__") else type(value)
    name = str(code.__module__)
    if isinstance(value, ModuleType) or name.partition(".")[0] in _NOT_TESTS:
        return False
    module = sys.modules.get(name)
    if module is None:
        return True
    file = str(getattr(module, "__file__", None) or "")
    return name in imported and bool(file) and not file.startswith(_INSTALLED)


_NOT_TESTS = frozenset({"builtins", "pytest_regional", "_pytest", "torch", "numpy"})
_INSTALLED: tuple[str, ...] = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


@dataclass(frozen=True)
class Sets:
    """The entries of several sets; additions during an import are the module's."""

    holders: Callable[[], Mapping[str, set[Any]]]

    def read(self) -> tuple[frozenset[str], dict[str, set[Any]]]:
        """Return copies, and the imported modules."""
        return imported_modules(), {name: set(holder) for name, holder in self.holders().items()}

    def differences(self, before: Any) -> Iterator[Leak]:
        """Yield the sets that changed."""
        imported, copies = before
        for name, holder in self.holders().items():
            copy = copies.get(name)
            if copy is not None and copy != holder and not (imported_modules() is not imported and copy < holder):
                yield Leak(name, f"{len(copy)} entries", f"{len(holder - copy)} more, {len(copy - holder)} less")

    def restore(self, before: Any) -> None:
        """Restore all sets."""
        for name, holder in self.holders().items():
            copy = before[1].get(name)
            if copy is not None:
                holder.clear()
                holder.update(copy)


@dataclass(frozen=True)
class Patterns:
    """Lists of Inductor's patterns; a pattern with a handler of the test's own code is the test's."""

    passes: Callable[[], Iterable[tuple[str, Mapping[Any, list[Any]]]]]

    def read(self) -> tuple[frozenset[str], dict[tuple[str, Any], Sequence[Any]]]:
        """Return copies, and the imported modules."""
        return imported_modules(), {
            (name, key): tuple(found) for name, each in self.passes() for key, found in each.items()
        }

    def _changed(self, before: Any) -> Iterator[tuple[str, Any, list[Any], list[Any]]]:
        imported, copies = before
        for name, each in self.passes():
            for key, now in each.items():
                copy = copies.get((name, key), ())
                if len(copy) == len(now) and all(map(is_, copy, now)):
                    continue
                kept = list(copy)
                for entry in (one for one in now if not any(one is old for old in copy)):
                    handler = getattr(entry, "handler", None) or getattr(entry, "extra_check", entry)
                    kept += [] if is_a_tests(None, handler, imported) else [entry]
                if len(kept) != len(now) or not all(map(is_, kept, now)):
                    yield f"{name}.patterns[{key}]", copy, now, kept

    def differences(self, before: Any) -> Iterator[Leak]:
        """Yield the operators whose patterns changed."""
        for name, copy, now, _ in self._changed(before):
            yield Leak(name, f"{len(copy)} patterns", f"{len(now)} patterns")

    def restore(self, before: Any) -> None:
        """Remove the test's patterns, and restore those it removed."""
        for _, _, now, kept in list(self._changed(before)):
            now[:] = kept
