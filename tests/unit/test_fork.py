"""The fork gate, the generation, lazy imports (L9)."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
import weakref

import pytest

from ground import needs
from lifehold.runtime import fork, heartbeat
from lifehold.testing.claims.ending import in_child

pytestmark = needs("fork")


def test_a_child_has_a_greater_generation_and_an_open_gate():
    before = fork.generation

    def child():
        assert fork.generation == before + 1
        opened = []
        thread = threading.Thread(target=lambda: opened.append(fork.gate.acquire(timeout=60)))
        thread.start()
        thread.join()
        assert opened == [True]

    in_child(child)
    assert fork.generation == before


def test_no_fork_happens_while_another_thread_is_in_the_gate():
    entered, leave, forked = threading.Event(), threading.Event(), []

    def inside():
        with fork.gate:
            entered.set()
            leave.wait(60)
            forked.append("left")

    thread = threading.Thread(target=inside)
    thread.start()
    entered.wait(60)
    threading.Timer(0.03, leave.set).start()
    in_child(lambda: None)
    assert forked == ["left"]
    thread.join()


def test_a_thread_in_the_gate_may_itself_fork():
    with fork.gate:
        in_child(lambda: None)


def test_a_callback_that_finds_a_closed_descriptor_does_not_stop_the_others(monkeypatch):
    called = []

    def broken():
        raise OSError(9, "closed behind our back")

    hooks = [broken, lambda: called.append(1)]
    monkeypatch.setattr(fork, "_callbacks", {hook: hook for hook in hooks})

    def child():
        assert called == [1]
        assert fork.gate.acquire(timeout=60)

    in_child(child)


def test_a_lazy_import_answers_the_module_of_that_name():
    sys.modules.pop("colorsys", None)
    found = fork.lazily("colorsys")
    assert found is sys.modules["colorsys"]
    assert fork.lazily("colorsys") is found
    assert fork.lazily("os.path") is os.path
    with pytest.raises(ModuleNotFoundError):
        fork.lazily("no_such_module")


def test_a_module_that_is_loaded_late_takes_the_place_of_what_loads_it():
    sys.modules.pop("colorsys", None)
    place = {"colorsys": None}
    place["colorsys"] = proxy = fork.later("colorsys", place)
    assert "colorsys" not in sys.modules
    assert place["colorsys"].rgb_to_hsv is sys.modules["colorsys"].rgb_to_hsv
    assert place["colorsys"] is sys.modules["colorsys"]
    assert proxy.rgb_to_hsv is sys.modules["colorsys"].rgb_to_hsv  # for who had kept it
    place["colors"] = fork.later("colorsys", place, "colors")
    with pytest.raises(AttributeError, match="no_such_name"):
        place["colors"].no_such_name  # noqa: B018
    assert place["colors"] is sys.modules["colorsys"]


def test_a_module_that_could_not_be_loaded_is_tried_again(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(tmp_path))
    place = {}
    place["comes_late"] = fork.later("comes_late", place)
    with pytest.raises(ModuleNotFoundError):
        place["comes_late"].ready  # noqa: B018
    (tmp_path / "comes_late.py").write_text("ready = True\n")
    importlib.invalidate_caches()
    assert place["comes_late"].ready
    assert sys.modules.pop("comes_late") is place["comes_late"]


def test_a_lazy_import_waits_for_the_thread_that_is_importing(tmp_path, monkeypatch):
    (tmp_path / "slow_to_import.py").write_text(
        "import slow_gate\nslow_gate.entered.set()\nslow_gate.leave.wait(60)\nready = True\n"
    )
    gate = type(sys)("slow_gate")
    gate.entered, gate.leave = threading.Event(), threading.Event()
    monkeypatch.setitem(sys.modules, "slow_gate", gate)
    monkeypatch.syspath_prepend(str(tmp_path))
    thread = threading.Thread(target=__import__, args=("slow_to_import",))
    thread.start()
    gate.entered.wait(60)
    threading.Timer(0.03, gate.leave.set).start()
    try:
        assert fork.lazily("slow_to_import").ready
    finally:
        thread.join()
        sys.modules.pop("slow_to_import", None)


def test_a_child_forked_during_a_lazy_import_can_import_too():
    stop = threading.Event()

    def importing():
        while not stop.is_set():
            for name in ("colorsys", "chunk_of_nothing", "sndhdr_of_nothing"):
                sys.modules.pop(name, None)
                try:
                    fork.lazily(name)
                except ModuleNotFoundError:
                    continue

    thread = threading.Thread(target=importing)
    thread.start()
    try:
        for _ in range(20):
            in_child(lambda: (sys.modules.pop("colorsys", None), fork.lazily("colorsys")))
    finally:
        stop.set()
        thread.join()


def test_the_heartbeat_of_a_child_is_its_own():
    fired = threading.Event()
    strike = heartbeat.at(heartbeat.clock.now() + 0.05, fired.set)

    def child():
        assert not heartbeat._diary.entries
        own = threading.Event()
        heartbeat.at(heartbeat.clock.now(), own.set)
        assert own.wait(60)
        assert not fired.wait(0.1)

    in_child(child)
    assert fired.wait(60)
    strike()


def test_a_child_strikes_its_parents_appointment_though_a_thread_had_the_list(monkeypatch):
    monkeypatch.setattr(heartbeat, "_diary", heartbeat._TimerQueue())
    parents = heartbeat._diary
    strike = heartbeat.at(heartbeat.clock.now() + 3600, lambda: None)
    entered, leave = threading.Event(), threading.Event()

    def inside():
        with parents.mutex:
            entered.set()
            leave.wait(60)

    thread = threading.Thread(target=inside)
    thread.start()
    assert entered.wait(60)

    def child():
        strike()
        assert parents.calls  # it is our parent's still
        assert parents.mutex.acquire(blocking=False)  # for whoever was about to take it
        parents.mutex.release()

    try:
        in_child(child)
    finally:
        leave.set()
        thread.join()
    strike()
    assert not parents.calls


def test_a_method_is_called_in_a_child_as_long_as_there_is_its_object():
    called = [0, 0, 0]

    class Counts:
        def __init__(self, number):
            self.number = number
            fork.in_child(self.begin)

        def begin(self):
            called[self.number] += 1

    known = len(fork._callbacks)
    kept, gone = Counts(1), Counts(2)
    of_one_that_is_gone = weakref.ref(gone)
    del gone
    assert of_one_that_is_gone() is None
    assert len(fork._callbacks) == known + 1
    child = os.fork()
    if not child:
        os._exit(called[1] == 1 and called[2] == 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    del kept
    assert len(fork._callbacks) == known


OUT_OF_REACH = """
import os, sys
import lifehold
from lifehold import Lock, SystemRefused, locked_file

class Away:
    "The folder of Python's library, after the rights were given up."

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in sys.stdlib_module_names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

os.chdir(sys.argv[1])
exec(sys.argv[4])
for name in sys.argv[3].split():
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Away)
os.__file__ = "/nowhere/os.py"
try:
    with eval(sys.argv[2]):
        print("held")
except SystemRefused as error:
    print("refused:", error)
"""


@pytest.mark.parametrize(
    ("block", "away", "before"),
    [
        ("Lock('a')", "fcntl", ""),
        ("Lock('a', kind='soft')", "fcntl", ""),
        ("Lock('a', kind='link')", "heapq", "Lock('warm').acquire().release()"),
        ("locked_file('a', 'w')", "hashlib", "Lock('warm').acquire().release()"),
    ],
)
@needs("linux")
def test_a_library_of_python_that_is_out_of_reach_is_told_as_that(block, away, before, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", OUT_OF_REACH, tmp_path, block, away, before],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("refused: ")
    assert "cannot be reached any more" in done.stdout
