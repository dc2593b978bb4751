"""A store in SQLite: leases among the processes of one machine (backend.py)."""
