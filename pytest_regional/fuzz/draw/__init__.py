"""Random programs: ``encoding`` (bytes to program), ``templates`` of rare steps, ``near_duplicates``, ``graphs``."""
