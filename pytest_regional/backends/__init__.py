"""What can be tested: specifications of backends, their capabilities, and the registry.

* ``spec``: ``BackendSpec``, which describes a backend; ``capabilities``: what it can do.
* ``registry``: from a name to a specification; ``adapters``: the built-in backends, torch's and the reference.
* ``ordering``: order edges in graphs, for tests of any backend.

May import: ``reference`` (no other package may), ``_torch``, ``_base``.
"""
