"""What fuzzing found, kept on disk.

``folder`` and its ``files`` with their provenance, ``scripts`` that reproduce, ``replaying``.
"""
