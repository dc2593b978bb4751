"""What runs in the guest: two clients of one NFSv4 server, each with its own mount and identity.

`python -m soak.nfs_guest /a /b COUNT SECONDS`. Each answer is one line `RESULT {json}`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

from faults.cell import Cell, Scene
from faults.mounts import two_hosts
from faults.rows import BY_NAME, ROWS
from lifehold.local.refresh import refresh_attributes
from soak import doctor_guest
from soak.contest import contest


def result(what, **said):
    print("RESULT " + json.dumps({"what": what, **said}), flush=True)


def cell(row, one, two):
    """Two hosts by all their ids: killed, stopped, told, refused; decided by the lease alone."""
    made = Cell("two hosts, real NFSv4", row.name)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        scene = Scene(made, row, Path(folder))
        name = row.name.replace(" ", "-")
        for mount in (one, two):
            (mount / name).mkdir(exist_ok=True)
        try:
            try:
                two_hosts(scene, one / name, two / name)
            finally:
                scene.close()
        except Exception:
            made.complaints.append(traceback.format_exc()[-600:])
    result("cell", **dataclasses.asdict(made), wrong=made.wrong)


def refreshed(one, two, way):
    """Whether the size that another client gave a file is seen: before, and after the refresh."""
    path = one / f"grows-{way}"
    path.write_text("x")
    fd = os.open(two / path.name, os.O_RDWR)
    os.fstat(fd)
    with path.open("a") as file:
        file.write("yz")
    before = os.fstat(fd).st_size
    refresh_attributes(fd, way=way)
    result("refresh", way=way, before=before, after=os.fstat(fd).st_size)
    os.close(fd)


def main():
    one, two = map(Path, sys.argv[1:3])
    count, seconds = int(sys.argv[3]), float(sys.argv[4])
    kinds = sys.argv[5].split("+") if len(sys.argv) > 5 else ["generation-ttl"]
    result("mounts", text=[line for line in Path("/proc/mounts").read_text().splitlines()
                           if " nfs4 " in line])  # fmt: skip
    if kinds == ["doctor"]:
        doctor_guest.main()
        return
    for way in ("chmod", "lockf"):
        refreshed(one, two, way)
    for row in ROWS:
        if row.shared:
            cell(row, one, two)
    for kind in kinds:
        began = time.monotonic()
        row = BY_NAME[kind.replace("-", " ")]
        for mount in (one, two):
            (mount / f"contest-{kind}").mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            paths = [mount / f"contest-{kind}" / "lock" for mount in (one, two)]
            said = contest(Path(folder), row, paths, count, seconds)
        result("contest", kind=row.name, seconds=round(time.monotonic() - began, 1), **said)


if __name__ == "__main__":
    main()
