"""Private servers for tests: on free ports, in temporary folders, stopped by their own pid."""
