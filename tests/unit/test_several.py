"""Many locks are asked for with one look at the processes, and who changes hands is asked again."""

from __future__ import annotations

import fcntl
import os

from ground import needs
from lifehold.ops import foreign
from lifehold.ops.who import FREE, HELD, who


def taken(path):
    fd = os.open(path, os.O_CREAT | os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


@needs("linux")
def test_many_locks_cost_one_look_through_all_processes(tmp_path, monkeypatch):
    looks = []
    real = foreign.OpenFileScan

    def counted(names, pids=None, **more):
        looks.append(pids)
        return real(names, pids, **more)

    monkeypatch.setattr(foreign, "OpenFileScan", counted)
    paths = [str(tmp_path / f"{number}.lock") for number in range(60)]
    fds = [taken(path) for path in paths]
    answers = foreign.several(paths, lambda at, files: who(paths[at], paths[at], files=files))
    for fd in fds:
        os.close(fd)
    assert [answer.state for answer in answers] == [HELD] * 60
    assert all(answer.holder.owner.pid == os.getpid() for answer in answers)
    assert looks.count(None) <= foreign.ROUNDS  # neighbours' locks may begin another round
    assert len(looks) <= 2 * foreign.ROUNDS


@needs("linux")
def test_a_lock_taken_while_others_are_asked_for_is_asked_for_again(tmp_path):
    paths = [str(tmp_path / name) for name in ("first", "last")]
    for path in paths:
        os.close(taken(path))
    held = []

    def ask(at, files):
        answer = who(paths[at], paths[at], files=files)
        if at == 1 and not held:
            held.append(taken(paths[0]))  # after it was asked for
        return answer

    first, last = foreign.several(paths, ask)
    os.close(held[0])
    assert (first.state, last.state) == (HELD, FREE)
