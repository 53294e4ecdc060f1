"""No cache gives back a result from before a change, neither after a restart nor in a new process."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from filelock import FileLock

from .changes import Change
from .runner import StaleResultError, message, verdicts
from .table import rows

pytestmark = pytest.mark.regional_compile

#: Few kinds of changes: code, and a setting of the regions.
QUICK = {"code-edited_line", "passes-region_config"}


def case(row: Change):
    """Return a row as a value for ``pytest.mark.parametrize``."""
    marks = [pytest.mark.regional_compile(requires=row.requires, expects_regions=False)]
    reason = f"PyTorch's cache gives back the old result: docs/findings/{row.finding}.py"
    marks += [pytest.mark.regional_known_failure(backend, reason=reason) for backend in row.stale_on]
    marks += [pytest.mark.quick] if row.id in QUICK else []
    return pytest.param(row, id=row.id, marks=marks if row.quick else [*marks, pytest.mark.whole_staleness])


@pytest.fixture
def found(request, regional, change, tmp_path_factory):
    """What is wrong with the row: it is checked with all others of its batch, by whichever test comes first."""
    run = tmp_path_factory.getbasetemp()
    folder = Path(run.parent if "PYTEST_XDIST_WORKER" in os.environ else run, "staleness")
    folder.mkdir(exist_ok=True)
    answers = folder / f"{regional.backend.replace('/', '-')}-{regional.device_under_test.name}-{change.batch}.json"
    with FileLock(f"{answers}.lock"):
        known = json.loads(answers.read_text()) if answers.exists() else {}
        if change.id not in known:
            chosen = {item.callspec.params["change"].id for item in request.session.items if _runs(item)} - set(known)
            batch = [row for row in rows().values() if row.id in chosen and row.batch == change.batch]
            known |= verdicts(regional, [row for row in batch if all(map(regional.supports, row.requires))])
            answers.write_text(json.dumps(known))
        return known[change.id]


def _runs(item):
    return item.name.startswith("test_fresh") and item.path == Path(__file__)


@pytest.mark.parametrize("change", [case(row) for row in rows().values()])
def test_fresh(change, found):
    if found:
        raise StaleResultError(message(change, found))
