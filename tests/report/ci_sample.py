"""A report as a CI job leaves it, with texts that mean something to Markdown, HTML and workflow commands."""

from __future__ import annotations

from tests.report.test_document import fact, report

NASTY = "100%: <b>bold</b>\r\n| `a` *b* _c_ [d](e) @all #1 $x$\n```\n</details> ::error::no"


def failed(name, outcome="failed", **more):
    return {
        **fact(f"tests/test_block.py::{name}", outcome),
        "file": "python/tests/test_block.py",
        "line": 12,
        "message": "ParityError: 1 mismatch\n  - output: value",
        "failure": "E   ParityError: 1 mismatch",
        "rerun": f"pytest tests/test_block.py::{name} --regional-backend=reference --regional-seed=1 -n0",
        **more,
    }


def finding(name, size=3, **more):
    return {
        "name": name,
        "oracle": "parity",
        "rule": "The compiled program returns what eager returns.",
        "title": f"parity (run): value of output ({name})",
        "size": size,
        "discovered_at": 5,
        "script": f"/somewhere/regional-findings/{name}.py",
        "file": f"regional-findings/{name}.py",
        "text": "import torch",
        **more,
    }


def fuzzed(*findings, shard=0):
    campaign = {"mode": "native", "unit": "program", "hits": {one["name"]: 2 for one in findings}}
    return failed(f"test_fuzz[shard{shard}]", shard=shard, fuzz={**campaign, "findings": list(findings)})


def sample():
    return report(
        {**fact("tests/test_block.py::test_right"), "slowest_compiles": [{"seconds": 2.87, "what": "region mlp"}]},
        failed("test_nasty[<i>|x]", message=NASTY, blame="fusion of buf0 and buf1"),
        failed("test_dies", "crashed", message="worker 'gw0' crashed"),
        failed("test_elsewhere", file="", line=3),
        fuzzed(finding("reference-parity-run-6b3fbda6")),
        fuzzed(finding("reference-parity-run-6b3fbda6", size=2), finding("order-1", oracle="order"), shard=1),
        fact("tests/test_block.py::test_known", "known failure"),
    )
