"""Leases in stores: the engine, and one backend per store. What users call is `stores.py` above.

A new store begins at `opening.py` and `core/backend.py`; `memory.py` is the smallest.
"""
