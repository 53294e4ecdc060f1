"""Goldens: what a compile did as a reviewable text file, and sentences about what is otherwise now.

* ``facts``: a record as lines of text, one fact a line.
* ``file``: the text files: which entry holds for a version of torch and a class of devices.
* ``difference``: two texts compared, in sentences.
* ``checking``: ``assert_golden``, and the errors.
"""
