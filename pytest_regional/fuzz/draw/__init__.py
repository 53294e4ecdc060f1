"""Random programs: ``encoding`` (bytes to program), ``templates`` (rare steps, near duplicates), ``graphs``."""
