"""What fuzzing found, kept on disk.

``folder`` and its ``files``, ``scripts`` that reproduce, ``provenance``, ``replaying``.
"""
