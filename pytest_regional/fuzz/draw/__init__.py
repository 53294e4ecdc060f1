"""Random programs and graphs: ``encoding`` (bytes to program), ``templates``, ``random_programs``, ``graphs``."""
