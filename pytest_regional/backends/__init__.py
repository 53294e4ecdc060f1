"""What can be tested: backend specifications, capabilities, the registry, adapters for torch's own backends.

``BackendSpec`` describes a backend, ``Capabilities`` what it can do, and ``registry`` finds one by name. May import:
``reference`` and ``emulation`` by name, ``_torch``, ``_base``.
"""
