"""``python -m pytest_regional``."""

import sys

from pytest_regional.cli import main

sys.exit(main())
