"""kill -9 at every step that acquire, hold and release take.

The next one is in at once, tokens grow.
"""

from __future__ import annotations

import os
import signal

import pytest

from crash.scene import acquire_and_release, free, hold, next_token, until, waits_in_the_kernel
from lifehold import Lock
from lifehold.testing.crash import Child, ChildEnded, point, points_at_calls


def stop_at_every_call(path, rounds, **options):
    points_at_calls()
    for _ in range(rounds):
        lease = Lock(path, **options).acquire()
        point("held", lease.token)
        lease.release()


def all_points(path, rounds, **options):
    with Child(stop_at_every_call, path, rounds, *options.values()) as child:
        while child.step():
            pass
        assert child.end().well, child.end().error
        return child.passed


def test_a_point_stops_a_child_and_tells_its_value(tmp_path):
    with Child(hold, str(tmp_path / "lock")) as child:
        assert child.at("held") > 0
        assert not free(tmp_path / "lock")
        child.at("released")
        assert free(tmp_path / "lock")
        assert child.end().well


def test_a_child_that_ends_before_its_point_is_reported_with_its_error(tmp_path):
    with Child(hold, str(tmp_path)) as child, pytest.raises(ChildEnded, match="is a directory"):
        child.at("held")


def test_a_stopped_child_stands_still_and_goes_on_when_resumed(tmp_path):
    with Child(hold, str(tmp_path / "lock")) as child:
        child.at("held")
        child.stop()
        assert not free(tmp_path / "lock")
        child.resume()
        child.at("released")


def test_a_child_whose_end_is_not_seen_leaves_no_open_line(tmp_path):
    child = Child(hold, str(tmp_path / "lock"))
    child.at("held")
    end, child.end = child.end, lambda: raised(OSError)
    with pytest.raises(OSError, match="not seen"), child:
        pass
    assert child._socket.fileno() == -1
    assert child._stderr.closed
    child.end = end
    os.waitpid(child.pid, 0)


def raised(kind):
    raise kind("not seen")


def test_an_orphan_ends_at_its_next_point(tmp_path):
    def middle():
        inner = Child(hold, str(tmp_path / "lock"))
        inner.at("held")
        point("ready", inner.pid)

    with Child(middle) as child:
        child.at("ready")
        child.kill()
    assert next_token(str(tmp_path / "lock")) > 0


def test_a_point_outside_a_child_does_nothing():
    point("nowhere")


@pytest.mark.parametrize(("old", "rounds"), [(False, 1), (True, 1), (True, 2)])
def test_a_kill_at_any_file_call_leaves_the_lock_free_and_tokens_growing(tmp_path, old, rounds):
    def new(number):
        path = str(tmp_path / f"lock{number}")
        return path, next_token(path) if old else 0

    points = all_points(new("")[0], rounds)
    assert {"before flock", "after pwrite", "held"} <= set(points)
    for number in range(1, len(points) + 1):
        path, last = new(number)
        with Child(stop_at_every_call, path, rounds) as child:
            for _ in range(number):
                if child.step() == "held":
                    last = child.value
            assert child.kill().signal == signal.SIGKILL
        assert next_token(path, 0) > last, f"killed at {child.passed[-1]}, step {number}"


def test_a_waiter_is_in_soon_after_the_holder_is_killed(tmp_path):
    path = str(tmp_path / "lock")
    with Child(hold, path) as holder:
        before = holder.at("held")
        with Child(acquire_and_release, path, 20) as waiter:
            until(lambda: waits_in_the_kernel(waiter.pid))
            holder.kill()
            assert waiter.end(5).value > before


def test_a_killed_waiter_does_not_hold_up_the_others(tmp_path):
    path = str(tmp_path / "lock")
    with Child(hold, path) as holder:
        holder.at("held")
        with (
            Child(acquire_and_release, path, 20) as waiter,
            Child(acquire_and_release, path, 20) as other,
        ):
            until(lambda: waits_in_the_kernel(waiter.pid) and waits_in_the_kernel(other.pid))
            assert waiter.kill().signal == signal.SIGKILL
            holder.at("released")
            assert other.end(5).well


def test_a_paused_holder_keeps_the_lock_for_as_long_as_it_lives(tmp_path):
    path = str(tmp_path / "lock")
    with Child(hold, path) as holder:
        holder.at("held")
        holder.stop()
        with Child(acquire_and_release, path, 0.3) as other:
            assert "Timeout" in other.end().error
        holder.kill()
        assert next_token(path, 0) > 0
