"""Leases in Redis in a program whose threads are greenlets: an answer comes whoever asks for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ground import needs

pytestmark = needs("redis")
PATCH = {
    "gevent": "from gevent import monkey; monkey.patch_all()\n",
    "eventlet": "import warnings; warnings.simplefilter('ignore')\n"
    "import eventlet; eventlet.monkey_patch()\n",
}
TURNS = """
import sys, threading, time
from lifehold import connect

store, done = connect(sys.argv[1]), []

def work():
    for _ in range(5):
        with store.lock("job", ttl=60, wait=60):
            done.append(1)
            time.sleep(0.001)

beats = threading.Thread(target=lambda: [time.sleep(0.01) for _ in range(100)])
beats.start()
threads = [threading.Thread(target=work) for _ in range(4)]
for each in threads: each.start()
for each in threads: each.join()
print(len(done))
"""


@pytest.mark.parametrize(
    "library", [pytest.param(each, marks=needs(f"package:{each}")) for each in PATCH]
)
def test_greenlets_take_turns_over_one_server(redis_url, library):
    command = [sys.executable, "-c", PATCH[library] + TURNS, redis_url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.stdout, done.returncode) == ("20\n", 0), done.stderr
