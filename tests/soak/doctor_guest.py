"""`doctor` on two mounts of one NFSv4 server, in the guest: from one client, and with the other.

`python -m soak.doctor_guest /a /b` prints one line `RESULT {json}` for each. `asked` does the same
anywhere: what `ssh` would do on a second host is done in a mount namespace of its own, where the
other mount lies under the same path.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SSH = """#!/bin/sh
for last; do :; done
exec unshare -m sh -c 'mount --bind {other} {folder} && exec sh -c "$0"' "$last"
"""


def asked(folder, other=None):
    """What `lifehold doctor --json` says of a folder; `other`: the second host's mount of it."""
    with tempfile.TemporaryDirectory() as binaries:
        words = [sys.executable, "-m", "lifehold", "doctor", "--json", str(folder)]
        if other is not None:
            ssh = Path(binaries, "ssh")
            ssh.write_text(SSH.format(folder=folder, other=other))
            ssh.chmod(0o755)
            words[4:4] = ["--peer", "ssh:second"]
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=300, check=False,
            env=os.environ | {"PATH": f"{binaries}:{os.environ['PATH']}"},
        )  # fmt: skip
    if not done.stdout:
        return {"error": done.stderr.strip().splitlines()[-1:], "status": done.returncode}
    return json.loads(done.stdout) | {"status": done.returncode}


def main():
    one, two = sys.argv[1:3]
    for ground, other in (("NFSv4.2, from one client", None), ("NFSv4.2, with the second", two)):
        said = asked(one, other)
        print("RESULT " + json.dumps({"what": "doctor", "ground": ground, "said": said}))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
