"""Nothing that a file holds, or a folder, ends the audit: a notice, and on with the next."""

from __future__ import annotations

import json
import os
import sys

import pytest

from lifehold.audit import Settings, Unusable, audit, model, report, scan, source
from lifehold.audit.catalogue import RULES
from lifehold.audit.judge import Judge

BAD = RULES["LH115"].bad


def found(*paths, **options):
    return audit([str(path) for path in paths], Settings(), jobs=1, **options)


def write(folder, name, content):
    file = folder / name
    data = content.encode() if isinstance(content, str) else content
    file.write_bytes(data)
    return file


HOSTILE = {
    "a syntax error": "import fcntl\nfcntl.flock(open('a.lock'), 2\n",
    "null bytes": b"import fcntl\0lock",
    "an unknown encoding": b"# coding: klingon\nlock = open('x.lock', 'x')\n",
    "bytes that are no text": b"lock = '\xff\xfe\xfa'\nimport os\nos.unlink('a.lock')\n",
    "parentheses to a depth of 10,000": "lock = " + "(" * 10_000 + ")" * 10_000 + "; flock()\n",
    "a sum of 10,000 terms": "import fcntl\nlock = " + "+".join(["a"] * 10_000) + "\n",
    "10,000 branches": "import fcntl\nif lock: pass\n" + "elif lock: f()\n" * 10_000,
    "brackets to a depth of 150": "import fcntl\nlock = " + "[" * 150 + "]" * 150 + "\n",
    "calls on calls": "import fcntl\nlock = a" + ".b()" * 3_000 + "\n",
    "a line of a megabyte": "import fcntl\nlock = '" + "x" * 1_000_000 + "'\n",
    "a circle of helpers": "import fcntl\ndef lock_a(): lock_b()\ndef lock_b(): lock_a()\n",
    "a name that stands for itself": "import fcntl\nlock = lock\nfcntl.flock(lock, 2)\n",
    "classes that are their own parents": "import os\nclass Lock(Lock):\n def f(self): self.g()\n",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_costs_itself_alone(name, tmp_path):
    write(tmp_path, "a_hostile.py", HOSTILE[name])
    write(tmp_path, "b_plain.py", BAD)
    report = found(tmp_path)
    assert [f.code for f in report.findings if f.path.endswith("b_plain.py")] == ["LH115"]
    assert all(notice.path.endswith("a_hostile.py") for notice in report.notices)


def test_100_000_lines_are_read_in_seconds(tmp_path):
    filler = "def f{0}(a):\n    b = a + {0}\n    return b\n\n"
    text = BAD + "".join(filler.format(number) for number in range(25_000))
    report = found(write(tmp_path, "generated.py", text))
    assert [f.code for f in report.findings] == ["LH115"]
    assert report.lines > 100_000


def test_the_locks_of_a_file_are_followed_once_however_many_functions_ask(tmp_path, monkeypatch):
    one = (
        "def job{0}(work):\n    file = open('{0}.lock', 'a')\n"
        "    fcntl.flock(file, fcntl.LOCK_EX)\n    work()\n    os.unlink('{0}.lock')\n"
    )
    followed = []
    handles = Judge.handles
    monkeypatch.setattr(
        Judge, "handles", lambda self, event: [followed.append(event), *handles(self, event)][1:]
    )
    text = "import fcntl, os\n" + "".join(one.format(number) for number in range(100))
    report = found(write(tmp_path, "many.py", text))
    assert sum(f.code == "LH108" for f in report.findings) == 100
    assert len(followed) < 1_000


@pytest.mark.parametrize(
    ("coding", "mark"),
    [("utf-8-sig", b""), ("latin-1", b"# coding: latin-1\n"), ("utf-16", b"")],
)
def test_a_file_is_read_in_its_own_encoding(coding, mark, tmp_path):
    text = BAD.replace("app.lock", "café.lock")
    report = found(write(tmp_path, "coded.py", mark + text.encode(coding)))
    assert [f.code for f in report.findings] == ["LH115"]


def test_line_ends_of_other_systems_do_not_move_a_finding(tmp_path):
    unix = found(write(tmp_path, "a.py", BAD)).findings[0]
    windows = found(write(tmp_path, "b.py", BAD.replace("\n", "\r\n"))).findings[0]
    assert (unix.line, unix.column) == (windows.line, windows.column)


def test_python_2_is_read_after_a_translation_and_that_is_said(tmp_path):
    text = (
        "import os\ndef remove_pid(pidfile):\n    try:\n        pid = int(file(pidfile).read())\n"
        "        os.kill(pid, 0)\n    except OSError, err:\n        print 'gone', err\n"
        "        os.remove(pidfile)\n    os.chmod(pidfile, 0644)\n"
    )
    report = found(write(tmp_path, "old.py", text))
    assert {"LH104", "LH105", "LH106"} <= {f.code for f in report.findings}
    assert ["Python 2" in notice.text for notice in report.notices] == [True]


def test_a_notebook_is_read_and_its_findings_stand_on_the_lines_of_the_file(tmp_path):
    code = BAD.splitlines(keepends=True)
    book = {
        "cells": [
            {"cell_type": "markdown", "source": ["lock"]},
            {"cell_type": "code", "source": ["%matplotlib inline\n", *code]},
        ]
    }
    file = write(tmp_path, "work.ipynb", json.dumps(book, indent=1))
    (finding,) = found(file).findings
    assert "fcntl.flock(open" in file.read_text().splitlines()[finding.line - 1]


def test_a_path_that_is_none_is_an_error_and_says_which(tmp_path):
    with pytest.raises(Unusable, match="there is no"):
        found(tmp_path / "nowhere")


def test_a_circle_of_symbolic_links_ends(tmp_path):
    folder = tmp_path / "a"
    folder.mkdir()
    write(folder, "lock.py", BAD)
    (folder / "up").symlink_to(tmp_path)
    (folder / "self.py").symlink_to("self.py")
    report = found(tmp_path)
    assert len(report.findings) == 1
    assert [notice.path.endswith("self.py") for notice in report.notices] == [True]


def test_a_file_that_two_paths_name_is_read_once(tmp_path):
    file = write(tmp_path, "lock.py", BAD)
    assert len(found(tmp_path, file, tmp_path).findings) == 1


def test_an_unreadable_file_is_named(tmp_path, monkeypatch):
    secret = write(tmp_path, "secret.py", BAD)
    write(tmp_path, "open.py", BAD)
    read = source.contents

    def refuse(file, *most):
        if file == str(secret):
            raise PermissionError(13, "Permission denied", file)
        return read(file, *most)

    monkeypatch.setattr(source, "contents", refuse)  # root may read all
    report = found(tmp_path)
    assert len(report.findings) == 1
    assert "secret.py" in report.notices[0].path


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "lock.py")
    assert found(tmp_path).findings == []


def test_an_empty_folder_holds_nothing(tmp_path):
    report = found(tmp_path)
    assert (report.files, report.findings, report.notices) == (0, [], [])


def test_several_processes_find_the_same_in_the_same_order(tmp_path, monkeypatch):
    monkeypatch.setattr("lifehold.audit.scan.SMALL", 0)
    for number in range(60):
        write(tmp_path, f"m{number:02}.py", BAD)
    alone = audit([str(tmp_path)], Settings(), jobs=1)
    together = audit([str(tmp_path)], Settings(), jobs=2)
    assert len(alone.findings) == 60
    assert together.findings == alone.findings


def test_what_was_read_is_remembered_by_its_content(tmp_path):
    cache = tmp_path / "cache"
    src = tmp_path / "src"
    src.mkdir()
    file = write(src, "lock.py", BAD)
    first = found(src, cache=cache)
    again = found(src, cache=cache)
    assert (first.from_cache, again.from_cache) == (0, 1)
    assert again.findings == first.findings
    file.rename(src / "moved.py")
    (moved,) = found(src, cache=cache).findings
    assert moved.path.endswith("moved.py")
    write(src, "moved.py", "import fcntl\n" + BAD)
    changed = found(src, cache=cache)
    assert changed.from_cache == 0
    assert changed.findings[0].line == first.findings[0].line + 1


LUA = """\
SCRIPT = "if redis.call('setnx', KEYS[1], ARGV[1]) == 1 then return 1 end return 0"
"""
ROW = "* * * * * backup test -f /run/a.lock && exit; touch /run/a.lock\n"


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("counters.py", "lock.py", LUA),
        ("a.crontab", "etc/crontab", ROW),
        ("one/a.crontab", "cron.d/a.crontab", ROW),
    ],
)
def test_what_a_rule_asks_of_the_name_is_remembered_with_it(tmp_path, old, new, text):
    places = [tmp_path / "src" / name for name in (old, new)]
    for order in (places, places[::-1]):
        cache = tmp_path / f"cache-{order[0].name}-{order[0].parent.name}"
        for place in order:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
            told = found(place, cache=cache).findings
            assert told == found(place).findings
            place.unlink()


def test_a_script_of_lua_is_a_lock_by_the_name_of_its_file(tmp_path):
    assert found(write(tmp_path, "counters.py", LUA)).findings == []
    assert [each.code for each in found(write(tmp_path, "lock.py", LUA)).findings] != []


def test_a_damaged_cache_is_made_anew(tmp_path):
    cache = tmp_path / "cache"
    file = write(tmp_path, "lock.py", BAD)
    found(file, cache=cache)
    for each in cache.glob("*.json"):
        each.write_text('{"a": ')
    assert len(found(file, cache=cache).findings) == 1


SHELL_ROW = """\
if [ -f /srv/x{0}.lock ]; then exit; fi
touch /srv/x{0}.lock
rm /srv/x{0}.lock
if [ -f /srv/y{0} ]; then exit; fi
touch /srv/y{0}
rm /srv/y{0}
((n++))
"""
PYTHON_ROW = """\
def f{0}(client, lock):
    client.set("lock:{0}", 1, nx=True)
    client.expire("lock:{0}", 3)
    client.delete("lock:{0}")
    if os.path.exists("f{0}"):
        return
    open("f{0}", "w").close()
    os.remove("f{0}")
"""
ROWS = {
    "job.sh": ("#!/bin/sh\n# it is still running\n", SHELL_ROW),
    "job.py": ("import os, redis\n", PYTHON_ROW),
}


def calls(name, text):
    """How many functions are called to look at this file."""
    seen = [0]

    def profile(_frame, event, _what):
        seen[0] += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        scan.of_text(name, text, Settings())
    finally:
        sys.setprofile(None)
    return seen[0]


@pytest.mark.parametrize("name", ROWS)
def test_a_file_four_times_as_long_costs_about_four_times_the_calls(name):
    def counted(count):
        head, row = ROWS[name]
        return calls(name, head + "".join(row.format(number) for number in range(count)))

    counted(2)  # what is read once
    assert counted(160) < 6 * counted(40)


DEEP = {
    "job.ts": lambda n: (
        'const fs = require("fs"); const lock = "/x.lock";\n'
        + "if (fs.existsSync(lock)) {\n" * n
        + 'fs.writeFileSync(lock, "1")\n'
        + "}\n" * n
    ),
    "job.sh": lambda n: (
        "#!/bin/sh\nLOCK=/tmp/x.lock\n" + "mkdir $LOCK\n" * n + "trap 'rm -r $LOCK' EXIT\n" * n
    ),
    "job.py": lambda n: (
        "import os\ndef f(lock_path):\n" + "    if os.path.exists(lock_path): return\n"
        '    open(lock_path, "w")\n    os.unlink(lock_path)\n' * n
    ),
}


@pytest.mark.parametrize("name", DEEP)
def test_tests_one_behind_the_other_cost_no_more_than_their_square(name):
    text = DEEP[name]
    calls(name, text(2))
    assert calls(name, text(160)) < 16 * calls(name, text(40))


def test_a_function_of_too_many_tests_is_told_and_not_finished(tmp_path, monkeypatch):
    monkeypatch.setattr(model, "MOST_STEPS", 1000)
    write(tmp_path, "app.py", DEEP["job.py"](40))
    report = found(tmp_path)
    assert [each.text[:31] for each in report.notices] == ["not finished: too many tests, o"]
    assert report.unread


def test_the_caret_stands_under_what_it_means_behind_wide_and_combined_signs(tmp_path):
    text = 'import fcntl\nx = "é已e\u0301"; fcntl.flock(open("a.lock"), fcntl.LOCK_EX)\n'
    write(tmp_path, "app.py", text)
    rows = report.full(found(tmp_path), "1").split("\n")
    shown = next(each for each in rows if "flock(" in each)
    caret = rows[rows.index(shown) + 1]
    wide = 'x = "é已e"; '  # as many columns as code points, and one more of the wide sign
    assert caret.index("^") == shown.index("x =") + len(wide) + 1
