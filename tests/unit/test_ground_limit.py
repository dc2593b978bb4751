"""A process at its limit of open files cannot look at its mounts: that says nothing of them."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

START = """
import os, resource, sys
import lifehold
from lifehold.local import ground, handles, refusals
folder = sys.argv[1]
lifehold.Lock(folder + "/first.soft", kind="soft").acquire().release()
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
ground._of_folders.clear(), ground._of_devices.clear()
filler, spare = [], os.open(folder, os.O_RDONLY)

def fill():
    try:
        while True:
            filler.append(os.dup(0))
    except OSError:
        pass

def leave(number):
    for _ in range(number):
        os.close(filler.pop())

def look(*asked):
    for each in asked:
        try:
            print(each(folder + "/x") if each in BY_PATH else each(spare))
        except lifehold.SystemRefused as error:
            print("refused", error.errno == 24, "ulimit -n" in str(error), folder in str(error))

BY_PATH = ground.place_of_path, ground.is_far, ground.is_unproven, ground.ground_of
ALL = *BY_PATH, ground.place_of
"""


def told_by(script, folder):
    done = subprocess.run(
        [sys.executable, "-c", START + script, folder],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_at_the_limit_of_open_files_the_limit_is_named_and_nothing_is_remembered(tmp_path):
    told = told_by("fill(); look(*ALL); leave(2); look(*ALL)", str(tmp_path))
    assert told[:5] == ["refused True True True"] * 5
    assert told[6:8] == ["False", "False"]  # near, and proven
    assert told[5] == told[8] == told[9] != "MountInfo(kind='', device='')"


def test_idle_descriptors_of_ours_make_room_for_the_look(tmp_path):
    told = told_by(
        "for name in 'ab': lifehold.Lock(folder + '/' + name).acquire().release()\n"
        "assert len(handles.TABLE.idle) == 2\n"
        "fill(); look(*ALL); print(len(handles.TABLE.idle))",
        str(tmp_path),
    )
    assert told[1:3] == ["False", "False"]
    assert told[0] == told[3] == told[4]
    assert told[5] == "0"


def test_a_soft_lock_at_the_limit_of_open_files_names_the_limit_not_the_ground(tmp_path):
    told = told_by(
        "for number in range(10):\n"  # descriptors that are left to it
        "    fill(); leave(number)\n"
        "    lock = lifehold.Lock(folder + f'/{number}.soft', kind='soft')\n"
        "    try: print(lock.acquire(0).held)\n"
        "    except lifehold.LifeholdError as error:\n"
        "        print(type(error).__name__, 'ulimit -n' in str(error))\n",
        str(tmp_path),
    )
    assert told[0] == "SystemRefused True"
    assert told[9] == "True"
    assert set(told) == {"SystemRefused True", "True"}
