"""Fuzzing of caches: sequences of operations against a model.

``sequences`` are the sequences, ``model`` says what has to happen, and has the process groups of some, ``campaign``
draws them and makes them a campaign's subject, ``findings`` keeps what breaks the model.
"""
