"""What hostile tests, files, services and machines do, as tables in which a new fault is a few lines."""
