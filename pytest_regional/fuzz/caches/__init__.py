"""Fuzzing of caches: sequences of operations against a model.

``sequences`` are the sequences and the model that says what has to happen, with the programs and process groups that
they name; ``campaign`` draws them and makes them a campaign's subject, ``findings`` keeps what breaks the model.
"""
