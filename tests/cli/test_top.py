"""`lifehold top`, at a real terminal and without one; `ls --host` and `ls --watch`."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest

from ground import needs, require
from lifehold import connect

from .shell import PATIENCE, PROMPT, Shell

pytestmark = needs("linux", "proc", "all processes")
DOCS = Path(__file__).parents[2] / "docs/reference"
WHO = json.loads((DOCS / "who.schema.json").read_text(encoding="utf-8"))
ANSWERS = json.loads((DOCS / "answers.schema.json").read_text(encoding="utf-8"))
CTRL_C, CTRL_Z = "\x03", "\x1a"
OTHER_PAGE, BACK = r"\x1b\[\?1049h", r"\x1b\[\?1049l"


@pytest.fixture
def place(lifehold):
    folder = lifehold.folder / "place"
    folder.mkdir()
    (folder / "SingletonLock").symlink_to("elsewhere-12")
    return folder


@pytest.fixture
def shell(lifehold, place) -> Iterator[Shell]:
    require("command:bash", "package:rich")
    one = Shell(lifehold.folder, lifehold.environment)
    one.run("export TERM=xterm")
    one.resize(20, 80)
    yield one
    one.end()


def settings(shell):
    return re.sub(r"rows \d+|columns \d+", "", shell.run("stty -a"))


def test_a_lock_that_is_taken_appears_and_q_leaves_the_terminal_as_it_was(shell, lifehold):
    before = settings(shell)
    shell.type("lifehold top -d 1h ./place\n")
    shell.wait(OTHER_PAGE)
    shell.wait("SingletonLock")
    holder = lifehold.holder("./place/taken.lock")
    shell.wait("taken.lock")  # by an event, or by the kernel's table: the next look is an hour away
    shell.type("jsrf")
    shell.wait("by time")
    lifehold.kill(holder)
    shell.type("q")
    shell.wait(BACK)
    shell.wait(re.escape(PROMPT))
    assert shell.run("echo status $?").endswith("status 0\n")
    assert settings(shell) == before


@pytest.mark.parametrize(("end", "status"), [(CTRL_C, 130), ("TERM", 143)])
def test_ctrl_c_and_term_leave_the_terminal_as_it_was(shell, lifehold, end, status):
    before = settings(shell)
    shell.type("sh -c 'echo $$ > pid; exec lifehold top ./place'\n")
    shell.wait("SingletonLock")
    if end == CTRL_C:
        shell.type(end)
    else:
        os.kill(int((lifehold.folder / "pid").read_text()), signal.SIGTERM)
    shell.wait(BACK)
    shell.wait(re.escape(PROMPT))
    assert shell.run("echo status $?").endswith(f"status {status}\n")
    assert settings(shell) == before


STRUCK = """
import os, signal, sys
from rich.live import Live
from lifehold.cli.main import main

step, moment = sys.argv[1:]
real = getattr(Live, step)

def struck(*words, **more):
    if moment == "before":
        os.kill(os.getpid(), signal.SIGINT)
    real(*words, **more)
    if moment == "after":
        os.kill(os.getpid(), signal.SIGINT)

setattr(Live, step, struck)
sys.argv[1:] = ["top", "./place"]
main()
"""


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("step", ["start", "stop"])
def test_ctrl_c_while_the_screen_comes_or_goes_leaves_the_terminal_as_it_was(
    shell, lifehold, step, moment
):
    (lifehold.folder / "struck.py").write_text(STRUCK)
    before = settings(shell)
    line = f"{sys.executable} struck.py {step} {moment}; echo status $?; stty -a"
    shell.type(f"sh -c '{line}'\n")  # an interactive shell would set the terminal right itself
    if step == "stop":
        shell.wait("SingletonLock")
        shell.type("q")
    after = shell.wait("(?s)status 130\n(.*)" + re.escape(PROMPT))[1]
    assert re.sub(r"rows \d+|columns \d+", "", after) == before.removeprefix("stty -a\n")
    pages = re.findall(f"{OTHER_PAGE}|{BACK}", shell.seen)
    assert pages in ([], ["\x1b[?1049h", "\x1b[?1049l"])


@needs("package:rich")
@pytest.mark.parametrize("mask", ["", "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])"])
def test_a_terminal_that_goes_ends_it_with_129_and_without_a_word(lifehold, place, mask):
    keyboard, terminal = os.openpty()
    line = f"import os, signal, sys; {mask or 'pass'}; fd = os.open(sys.argv[1], os.O_RDWR)"
    line += "; os.dup2(fd, 0); os.dup2(fd, 1); os.dup2(os.open('told', os.O_WRONLY), 2)"
    line += "; os.execv(sys.executable, [sys.executable, '-m', 'lifehold', 'top', './place'])"
    (lifehold.folder / "told").touch()
    top = lifehold.start(
        os.ttyname(terminal), program=("-c", line), env={"TERM": "xterm"}, stdout=None, stderr=None
    )
    seen = b""
    while b"SingletonLock" not in seen:
        assert select.select([keyboard], [], [], PATIENCE)[0], seen
        seen += os.read(keyboard, 65536)
    os.close(terminal)
    os.close(keyboard)
    assert top.wait(timeout=90) == 129
    assert (lifehold.folder / "told").read_text() == ""


def test_ctrl_z_gives_the_terminal_back_and_fg_draws_again(shell):
    before = settings(shell)
    shell.type("lifehold top ./place\n")
    shell.wait("SingletonLock")
    shell.type(CTRL_Z)
    shell.wait(BACK)
    shell.wait("Stopped")
    shell.wait(re.escape(PROMPT))
    assert settings(shell) == before
    shell.type("fg\n")
    shell.wait(OTHER_PAGE)
    shell.wait("SingletonLock")
    shell.type("q")
    shell.wait(re.escape(PROMPT))


def test_without_a_terminal_it_is_one_table_and_needs_no_rich(lifehold, place):
    (place / "evil\x1b[2J\n.lock").write_text("4190001")
    blind = "import sys; sys.modules['rich'] = None; from lifehold.cli.main import main; "
    done = lifehold(
        "top", "./place", program=("-c", f"{blind}sys.exit(main(sys.argv[1:]))"),
        env={"COLUMNS": "80"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    head, *rows = done.stdout.splitlines()
    assert head.split() == ["LOCK", "STATE", "FOR", "WAIT", "PID", "COMMAND"]
    assert len(rows) == 2
    assert "\x1b" not in done.stdout
    found = json.loads(lifehold("top", "--json", "./place").stdout)
    jsonschema.validate(found, WHO)
    assert found["schema"] == "lifehold.top/1"


def test_a_missing_rich_is_said_with_the_command_that_brings_it(shell, lifehold):
    program = "import sys; sys.modules['rich'] = None; from lifehold.cli.main import main; "
    (lifehold.folder / "top.py").write_text(f"{program}sys.exit(main(['top', './place']))\n")
    told = shell.run(f"{sys.executable} top.py; echo status $?")
    assert "pip install 'lifehold[top]'" in told
    assert told.endswith("status 71\n")


def test_a_folder_that_is_none_ends_it_before_the_screen_is_taken(shell):
    told = shell.run("lifehold top ./no-such; echo status $?")
    assert re.search("is not a folder", told)
    assert told.endswith("status 66\n")
    assert not re.search(OTHER_PAGE, told)
    assert "LOCK" in shell.run("TERM=dumb lifehold top ./place")  # once: it cannot draw


def test_a_width_that_no_screen_has_is_no_error(lifehold, place):
    lifehold.holder("./place/x.lock")
    done = lifehold("top", "--once", "./place", env={"COLUMNS": "9" * 20})
    assert done.returncode == 0
    assert "x.lock" in done.stdout


def test_ls_of_the_host_shows_a_lock_wherever_it_lies(lifehold, place):
    lifehold.holder("./place/deep.lock")
    done = lifehold("ls", "--host", "--held", "--json")
    found = json.loads(done.stdout)
    jsonschema.validate(found, WHO)
    assert str(place / "deep.lock") in {each["path"] for each in found["locks"]}
    assert isinstance(found["unseen"], list)
    assert lifehold("ls", "--host", "./place").returncode == 64


def test_ls_watch_gives_one_line_of_json_for_each_change(lifehold, place):
    watch = lifehold.start("ls", "--watch", "--json", "./place")
    first = json.loads(watch.stdout.readline())
    assert (first["schema"], first["change"]) == ("lifehold.change/1", "appeared")
    holder = lifehold.holder("./place/taken.lock")
    told = json.loads(watch.stdout.readline())
    assert (told["change"], told["lock"]["path"]) == ("appeared", str(place / "taken.lock"))
    jsonschema.validate(told, ANSWERS)
    jsonschema.validate({"schema": "lifehold.ls/1", "at": told["at"], "locks": [told["lock"]]}, WHO)
    lifehold.kill(holder)
    while told["lock"]["state"] != "free":
        told = json.loads(watch.stdout.readline())
    (place / "SingletonLock").unlink()
    assert json.loads(watch.stdout.readline())["change"] == "gone"
    watch.send_signal(signal.SIGINT)
    assert watch.wait(90) == -signal.SIGINT


def test_ls_watch_at_a_terminal_draws_the_list_anew(shell, lifehold):
    shell.type("lifehold ls --watch ./place\n")
    shell.wait("SingletonLock")
    lifehold.holder("./place/taken.lock")
    shell.wait("2 locks")
    shell.wait("taken.lock")
    shell.type(CTRL_C)
    shell.wait(re.escape(PROMPT))
    assert shell.run("echo status $?").endswith("status 130\n")


def test_the_table_of_a_store_shows_who_comes_and_goes(shell, lifehold, tmp_path):
    url = f"sqlite:///{tmp_path}/locks.db"
    store = connect(url)
    store.lock("other", wait=0).acquire().release()
    shell.resize(20, 200)
    before = settings(shell)
    shell.type(f"lifehold top -d 0.2s --store {url}\n")
    shell.wait("no lock is in use")
    lease = store.lock("jobs/nightly", wait=0).acquire()
    shell.wait("1 held")
    shell.wait("jobs/nightly")
    (tmp_path / "locks.db").rename(tmp_path / "away.db")  # told, and looked for again
    (tmp_path / "locks.db").mkdir()
    shell.wait("is no regular file")
    (tmp_path / "locks.db").rmdir()
    (tmp_path / "away.db").rename(tmp_path / "locks.db")
    shell.wait("1 held")
    lease.release()
    shell.wait("no lock is in use")
    shell.type("q")
    shell.wait(BACK)
    shell.wait(re.escape(PROMPT))
    assert shell.run("echo status $?").endswith("status 0\n")
    assert settings(shell) == before


def test_one_lock_of_a_store_is_shown_by_its_url_or_its_name(lifehold, tmp_path):
    url = f"sqlite:///{tmp_path}/locks.db"
    store = connect(url)
    waiter = threading.Thread(target=lambda: store.lock("job").acquire().release())
    with store.semaphore("gpu", 2), store.lock("other", wait=0), store.lock("job", wait=0):
        waiter.start()
        while store.waiters("job") != 1:
            pass
        for words in ([f"{url}#job"], ["--store", url, "job"]):
            found = json.loads(lifehold("top", "--json", *words).stdout)
            jsonschema.validate(found, WHO)
            assert [each["path"] for each in found["locks"]] == [f"{url}#job"]
            assert [each["kind"] for each in found["locks"][0]["waiting"]] == ["lease"]
            listed = lifehold("ls", "--names", *words).stdout
            assert listed == f"{url}#job\n"
        both = json.loads(lifehold("top", "--json", "--store", url).stdout)
        jsonschema.validate(both, WHO)
        assert {each["kind"] for each in both["locks"]} == {"lease", "lease, 2 permits"}
    waiter.join()
