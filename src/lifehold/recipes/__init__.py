"""What can be built of locks: `once`, and caches that are built once."""
