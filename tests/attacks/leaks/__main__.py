"""See :mod:`tests.attacks.leaks`."""

from tests.attacks.leaks.trials import main

main()
