"""What is being judged right now, as a file: where a compiler takes the process with it, the program stays.

Imports neither torch nor hypothesis: every summary looks whether there are such notes.
"""

from __future__ import annotations

import os
from pathlib import Path

#: The folder of notes, in the folder of findings.
NOTES = "judging"


def note_for(findings: Path, name: str) -> Path:
    """Return the file for what this process judges as shard ``name``."""
    notes = findings / NOTES
    notes.mkdir(parents=True, exist_ok=True)
    return notes / f"{name}-{os.getpid()}.json"


def notes_of_the_dead(findings: Path, since: float = 0.0) -> list[Path]:
    """Return the notes whose process is no more, written after ``since``, in seconds since the epoch."""
    notes = sorted((findings / NOTES).glob("*.json"))
    return [note for note in notes if note.is_file() and note.stat().st_mtime >= since and not _is_alive(note)]


def _is_alive(note: Path) -> bool:
    process = note.stem.rpartition("-")[2]
    try:
        os.kill(int(process), 0)
    except (OverflowError, ProcessLookupError, ValueError):  # nobody's number, or no number
        return False
    except PermissionError:
        return True
    return True
