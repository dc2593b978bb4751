"""Leases in stores: the engine, and one backend per store."""
