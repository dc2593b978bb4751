"""A store in PostgreSQL: leases (backend.py), and locks that end with a session (session.py)."""
