"""The claims of the conformance suite, by theme. Importing a file enters its claims."""
