"""See :mod:`tests.faults.leaks`."""

from tests.faults.leaks.trials import main

main()
