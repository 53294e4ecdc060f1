"""What a run prints and writes at its end, and how reports are read, compared and merged."""
