"""What can be wrong with an artifact: exceptions for who asked for one file, warnings for who only wanted a cache."""

from __future__ import annotations

import threading
import warnings


class ArtifactError(RuntimeError):
    """An artifact cannot be used; the message says which, what is wrong with it, and what to do."""


class NotAnArtifactError(ArtifactError):
    """The bytes are something else altogether: another program's file."""


class EmptyArtifactError(ArtifactError):
    """There are no bytes."""


class TruncatedArtifactError(ArtifactError):
    """The end is missing: a copy or a download that did not finish."""


class CorruptedArtifactError(ArtifactError):
    """Bytes changed since they were written."""


class ArtifactFormatError(ArtifactError):
    """Written in another version of the container's format."""


class ForeignTorchError(ArtifactError):
    """Compiled by another torch."""


class ForeignMachineError(ArtifactError):
    """Compiled by or for another Python, Triton, C++ compiler, CPU or GPU."""


class WrongKindError(ArtifactError):
    """A whole artifact, but not of what was asked for."""


class WrongKeyError(ArtifactError):
    """A whole artifact of the right kind that belongs to another cache key."""


class ArtifactNotFoundError(ArtifactError):
    """There is no such file."""


class NotAFileError(ArtifactError):
    """There is something of that name, but no regular file."""


class UnsafeFolderError(ArtifactError):
    """Somebody else could have put the artifact, or code in its stead, where it is."""


class UnauthenticatedEntryError(ArtifactError):
    """An entry from a network is not signed with the secret that this process has."""


class CacheWarning(UserWarning):
    """The cache did less than it should have; the program is compiled and right all the same."""


_said: set[str] = set()
_saying = threading.Lock()


def warn(message: str) -> None:
    """Say ``message`` as a ``CacheWarning``."""
    warnings.warn(message, CacheWarning, stacklevel=3)


def warn_once(message: str, *, about: str = "") -> None:
    """Say ``message`` once a process, or once for all messages ``about`` the same."""
    with _saying:
        if (about or message) in _said:
            return
        _said.add(about or message)
    warnings.warn(message, CacheWarning, stacklevel=3)


def forget_warnings() -> None:
    """Let ``warn_once`` say everything anew, as a new process would."""
    with _saying:
        _said.clear()


def warn_of_unusable_entry(error: Exception) -> None:
    """Warn that a whole entry of the outer cache names something that this process has not."""
    warnings.warn(
        f"an entry of the outer cache cannot be used here and is compiled anew: {type(error).__name__}: {error}",
        CacheWarning,
        stacklevel=3,
    )
