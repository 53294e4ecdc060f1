"""Order that is asked for with ``control_deps`` edges holds in the code that is generated."""
