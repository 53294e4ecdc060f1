"""Fuzzing of caches: sequences of operations against a model.

``histories`` are the sequences, ``machine`` draws them, ``model`` says what has to happen, ``campaign`` runs them,
``findings`` keeps what breaks the model.
"""
