"""One small program for each rule of regions. Most regions are a matrix product: an extern call, so no C++ compile."""
