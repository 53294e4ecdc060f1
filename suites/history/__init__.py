"""Known bugs of PyTorch's compilers, each as a test: which of them a backend has, or a release of torch."""
