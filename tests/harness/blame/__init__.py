"""Which layer, step and kernel of a compiler a failure comes from."""
