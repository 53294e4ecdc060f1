"""Fuzzing of caches: sequences of operations against a model.

``sequences`` are the sequences, ``machine`` draws them, ``model`` says what has to happen, ``campaign`` runs them,
``findings`` keeps what breaks the model.
"""
