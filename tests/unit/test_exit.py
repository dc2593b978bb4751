"""The end of the interpreter: a thread that it froze keeps nobody from closing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ground import needs

pytestmark = needs("linux", "fork")
FROZEN = """
import sys, threading
from lifehold import Lock
from lifehold.runtime import fork

lock = Lock(sys.argv[1], kind=sys.argv[2])
lease = lock.acquire(60)
if sys.argv[3] == "let go":
    lease.release()
inside = threading.Event()

def freeze():
    with fork.gate:
        inside.set()
        threading.Event().wait()

threading.Thread(target=freeze, daemon=True).start()
inside.wait()
"""


@pytest.mark.parametrize("kind", ["kernel", "soft", "generation", "directory"])
@pytest.mark.parametrize("how", ["let go", "held"])
def test_a_thread_frozen_inside_the_gate_does_not_hang_the_exit(kind, how, tmp_path):
    words = [sys.executable, "-c", FROZEN, tmp_path / "lock", kind, how]
    assert subprocess.run(words, timeout=90, check=False).returncode == 0
