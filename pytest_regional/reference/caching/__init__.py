"""The outer cache: whole results of the reference backend, on disk and across machines.

Modules, lower layers first; torch is only imported to describe a machine:

* ``container``: payload bytes with magic, format version, header and checksum, and errors for what is wrong with them.
  Artifacts as files, written atomically, in directories that no one else can write to; the machine and the versions
  that an artifact depends on.
* ``code``: the user's code that tracing runs, as texts.
* ``store``: entries as files, in PyTorch's portable artifacts, in Redis, signed, and in several stores.
* ``program``: compiled programs as bytes, and parts that cannot be stored.
* ``outer``: keys, and the cache that the backend uses.

Artifacts contain pickles. Nothing here unpickles, or returns, bytes whose origin was not checked. Never load an
artifact from a directory that others can write to.
"""
