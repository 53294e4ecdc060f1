"""Names of the two marks, and what ``pytest --markers`` says of them: all that a run without a backend needs."""

COMPILE_MARK = "regional_compile"
KNOWN_FAILURE_MARK = "regional_known_failure"

MARKER_LINES = (
    f"{COMPILE_MARK}(backend=None, device=None, dynamic=None, fullgraph=True, inductor_configs=None, "
    "pre_grad_pass_timing=None, requires=(), device_requires=(), expects_regions=True, isolate=True): compile with the "
    "backend under test; skipped unless --regional-backend is given, isolated, counted, and failed when no region was "
    "compiled.",
    f'{KNOWN_FAILURE_MARK}(backend, reason, torch=">=2.13", strict=True): the test is known to fail with that backend '
    "on those torch versions; when it passes, the mark is to be removed and the test fails until it is.",
)
