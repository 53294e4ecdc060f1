"""How long compiles take, phase by phase: measured over several compiles, and compared as ratios.

``record``: what was measured; ``measuring``: compiles again and again; ``methods``: what :class:`Regional` has of all
this, with ``assert_compile_time``.
"""
