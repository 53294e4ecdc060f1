"""Real models: parity forward and backward, and the regions that each backend is expected to make of them."""
