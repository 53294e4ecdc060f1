"""What can be tested: backend specifications, capabilities, the registry, adapters for torch's own backends."""
