"""Fuzzing of caches: sequences of operations against a model.

``sequences`` are the sequences, ``collectives`` the programs and process groups of some, ``model`` says what has to
happen, ``campaign`` draws them and makes them a campaign's subject, ``findings`` keeps what breaks the model.
"""
