"""kind="session" when the network itself goes away without a word, under both ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from ground import needs
from patience import SOON

# In a network of its own: a server, a holder over TCP, an observer over the local socket.
PLAY = """
import json, subprocess
import psycopg
from lifehold import connect
from patience import until
from servers import postgres

HELD = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted"
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
with postgres.started() as server:
    watcher = psycopg.connect(
        f"host={server.home} port={server.port} user=lifehold dbname=test", autocommit=True
    )
    lease = connect(server.url).lock("far", kind="session", ttl=3).acquire()
    told = []
    lease.lost.add_callback(lambda: told.append(lease.lost.reason))
    subprocess.run(["ip", "link", "set", "lo", "down"], check=True)
    until(lambda: not watcher.execute(HELD).fetchall())
    held = lease.held
    until(lambda: told)
    print(json.dumps({"held": held, "told": told}))
"""


@needs("postgres", "root", "unshare", "command:ip")
def test_when_the_network_is_gone_the_holder_is_told_before_the_server_lets_go():
    paths = [str(Path(__file__).parents[1]), *filter(None, sys.path)]
    done = subprocess.run(
        ["unshare", "-n", sys.executable, "-W", "ignore", "-c", PLAY], text=True,
        capture_output=True, timeout=4 * SOON, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert not seen["held"]  # L8  whatever it asked at that instant said so
    (reason,) = seen["told"]
    assert "without a renewal" in reason
