"""A campaign that several worker processes share, on one machine or on many.

Read in this order: ``plan`` says what is fuzzed, ``records`` what workers keep in the store, ``shared`` how they take
batches, claim failures and replace each other there. ``worker`` is the process that checks programs. ``engines`` start
such processes on this machine, ``ray_cluster`` on a Ray cluster, and ``head`` runs a campaign with one of them.
``status`` sums up what a store holds.

Only ``worker`` imports torch.
"""
