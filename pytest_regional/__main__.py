"""``python -m pytest_regional``."""

import sys

from pytest_regional.command_line import main

sys.exit(main())
