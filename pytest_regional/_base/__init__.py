"""What every other package may use: errors, text, files, child processes, limits.

``errors`` has the bases of all errors and warnings, ``files`` writes a file whole or not at all, ``processes`` finds
and ends processes. May import: nothing of this project, and no torch.
"""
