"""What a run prints and writes at its end, and how reports are read, compared and merged.

``Facts`` are what one test did, ``document`` is the JSON report made of them, ``terminal`` prints the table. May
import: ``harness``, ``backends``, ``_torch``, ``_base``.
"""
