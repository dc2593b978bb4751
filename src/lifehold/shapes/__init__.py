"""Locks of other shapes than one holder: readers and a writer, N at once, several names at once.

Each is made of the faces `Lock` and `AsyncLock` over mechanisms of its own, so waiting, telling,
cancelling, `max_hold`, forks and leases are theirs.
"""
