"""The outer cache: whole results of the reference backend, on disk and across machines.

Below everything, and free of torch until a machine is described:

* ``errors``: what can be wrong with an artifact, as exceptions and as warnings.
* ``machine``: what an artifact depends on besides its own key.
* ``envelope``: payload bytes in a checked container with magic, format version, header and checksum.
* ``folders``: folders that others cannot write to. ``files``: artifacts as files, written atomically.
* ``entries``: keys. ``local``: entries as files. ``remote``: the same in Redis, each signed (``signatures``).
* ``portable``: entries in PyTorch's portable artifacts. ``store``: one after the other; what the backend uses.
* ``pickling``: objects as bytes, and which part of one has none.

Artifacts are pickles by the time somebody uses them: nothing here unpickles, and nothing here hands out bytes whose
origin was not checked. Never load an artifact from a folder that others can write to.
"""
