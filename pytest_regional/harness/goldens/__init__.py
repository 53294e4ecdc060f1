"""Goldens: what a compile did as a reviewable text file, and sentences about what is otherwise now.

* ``file``: the text files, read and written without torch: which entry holds for a version of torch and a class of
  devices.
* ``checking``: ``assert_golden``: a record as lines of text, two texts compared, in sentences, and the errors.
"""
