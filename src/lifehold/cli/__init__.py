"""The command `lifehold`: arguments to calls, errors to exit codes, answers to text."""
