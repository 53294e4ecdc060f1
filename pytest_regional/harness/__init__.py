"""What a test does: compile, compare, count, read generated code, isolate. Works as a library without pytest.

* ``regional``: the object of a test; ``compiling``: its Dynamo backends; ``options``: how one program is compiled.
* ``observe``: watches compiles; ``counters``: what moved, and ``expect``; ``record``: what ``regional.run`` returns.
* ``parity``: compares with eager, for one call; ``training``: for several optimizer steps.
* ``compile_times``: how long each phase of a compile takes, and limits on it.
* ``codegen``: reads generated code; ``graph_passes``: ``run_pass``; ``ops``: how assertions name operators in both.
* ``isolation``: state of the process around a test; ``kernel_store``: compiled kernels that outlive it.
* ``devices``: the device under test; ``process``, ``_child`` and ``fork_server``: ``in_new_process``.
* ``cache_keys``: why a lookup missed; ``raised``: exceptions compared.
* ``pre_grad_passes``: counting passes; ``inputs``: tensors for tests; ``vacuity``: checks at the end of a test.
* ``blame``: search for what a failure comes from; ``goldens``: what a compile did, compared with a text file.

May import: ``backends``, ``verify`` and ``emulation`` where a test asks for them, ``_torch``, ``_base``.
"""
