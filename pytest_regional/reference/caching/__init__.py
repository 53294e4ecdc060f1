"""The outer cache: whole results of the reference backend, on disk and across machines.

Below everything, and free of torch until a machine is described:

* ``container``: payload bytes with magic, format version, header and checksum; what can be wrong with them, as errors.
* ``files``: artifacts as files, written whole, in directories that no one else can write to.
* ``key``: keys; ``target``: the machine and the versions that an artifact depends on.
* ``local``: entries as files. ``remote``: the same in Redis, each signed. ``store``: one after the other, and entries
  in PyTorch's portable artifacts.
* ``program``: compiled programs as bytes, and which part of one has none. ``outer``: what the backend uses.

Artifacts are pickles by the time somebody uses them: nothing here unpickles, and nothing here hands out bytes whose
origin was not checked. Never load an artifact from a folder that others can write to.
"""
