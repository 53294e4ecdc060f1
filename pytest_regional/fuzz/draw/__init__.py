"""Random programs: ``encoding`` (integers to program), ``templates`` (rare steps), ``graphs``."""
