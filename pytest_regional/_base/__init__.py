"""What every other package may use: errors, text, files, child processes, limits.

* ``errors``: the bases of all errors and warnings; ``text``: sentences, seeds, masks for secrets.
* ``files``: reading, and writing a file whole or not at all; ``documents``: JSON checked against declared types;
  ``cache_keys``: keys as named texts, kept as files.
* ``processes``: finds and ends processes; ``limits``: of time and memory.
* ``region``: the annotation that users write; ``stash``: what hooks keep at pytest's objects.

May import: nothing of this project; ``stash`` names types of other packages for type checkers.
"""
