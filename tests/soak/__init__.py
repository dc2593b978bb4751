"""The long runs.

Each is a module for the command line, and its parts are what the crash tests run for seconds.

    python -m tests.soak.namespaces 1000           a holder killed with its PID namespace
    python -m tests.soak.mixed --seconds 60 A B    one path shared with flock(1) and filelock
    python -m tests.soak.handover 1000000          hand-overs with pauses: no wake-up is missed
"""
