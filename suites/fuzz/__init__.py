"""Programs that nobody thought of, judged by the laws of regional compilation; how many, ``--regional-fuzz`` says."""
