"""What is told at the end of a run."""
