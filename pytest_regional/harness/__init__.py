"""What a test does: compile, compare, count, read generated code, isolate. Works as a library without pytest."""
