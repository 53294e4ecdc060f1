"""How programs and graphs are drawn: ``encoding`` (bytes to program), ``templates``, ``random_programs``, ``graphs``."""
