"""What the audit says of itself: its exit code, the names that it prints, what it was told."""

from __future__ import annotations

import json
import os
import sys
import xml.etree.ElementTree as ET

import pytest

from lifehold.audit.catalogue import RULES
from lifehold.cli.main import main

BAD, GOOD = RULES["LH115"].bad, RULES["LH115"].good
LINE = next(row for row in BAD.splitlines() if "flock(open" in row)
SECOND = BAD + f"\ndef another():\n{LINE.replace('app.lock', 'other.lock')}\n"
NULS = "import fcntl\nfcntl.flock\0(lock)\n"


@pytest.fixture
def run(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["audit", *words])
        return code, *capfd.readouterr()

    return run


# --- 0 means that all was read -------------------------------------------------------------------

UNREAD = {
    "null bytes": NULS,
    "no Python": "import fcntl\ndef f(:\n    fcntl.flock(lock)\n",
    "a long line": "import fcntl\nfcntl.flock(lock)\nx = '" + "x" * 200_001 + "'\n",
}


@pytest.mark.parametrize("name", UNREAD)
def test_a_file_that_is_not_read_is_told_and_ends_with_2(run, tmp_path, name):
    (tmp_path / "app.py").write_text(UNREAD[name])
    for words in ((), ("--diff",), ("--fix",), ("--write-baseline", "b.json")):
        code, _out, err = run(*words)
        assert (code, "app.py" in err, "not read" in err) == (2, True, True), words
    assert run("--adopt")[0] == 2
    (tmp_path / "bad.py").write_text(BAD)
    assert run()[0] == 1
    assert run("--diff")[0] == 1


@pytest.mark.parametrize("name", UNREAD)
def test_a_file_that_is_not_read_is_not_counted_as_one_without_findings(run, tmp_path, name):
    (tmp_path / "app.py").write_text(UNREAD[name])
    assert run()[1].endswith("nothing found in 0 of 1 file (0 lines).\n")
    (tmp_path / "good.py").write_text("import fcntl\n")
    assert run()[1].endswith("nothing found in 1 of 2 files (1 line).\n")


def test_sarif_is_a_success_only_where_all_was_read(run, tmp_path):
    def told():
        (part,) = json.loads(run("--format", "sarif")[1])["runs"]
        (invoked,) = part["invocations"]
        levels = [each["level"] for each in invoked["toolExecutionNotifications"]]
        return invoked["executionSuccessful"], levels

    (tmp_path / "app.py").write_bytes(GOOD.encode() + "# caf\xe9\n".encode("latin-1"))
    assert told() == (True, ["note"])
    (tmp_path / "bad.py").write_text(BAD)
    assert told() == (True, ["note"])
    (tmp_path / "nul.py").write_text(NULS)
    assert told() == (False, ["note", "error"])


def test_a_file_that_is_read_as_something_else_is_told_and_is_read(run, tmp_path):
    (tmp_path / "app.py").write_bytes(GOOD.encode() + "# caf\xe9\n".encode("latin-1"))
    code, _out, err = run()
    assert (code, "read as Latin-1" in err) == (0, True)


# --- a name that is no UTF-8 ---------------------------------------------------------------------

FORMATS = ("full", "concise", "json", "junit", "github", "gitlab", "sarif")


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="names there are UTF-8")
@pytest.mark.parametrize("form", FORMATS)
def test_a_name_that_is_no_text_is_told_in_every_format(run, form):
    name = os.fsdecode(b"caf\xe9.py")
    with open(name, "w") as file:
        file.write(BAD)
    with open(os.fsdecode(b"nul\xe9.py"), "w") as file:
        file.write(NULS)
    code, out, _err = run("--format", form)
    assert code == 1
    assert "caf" in out
    out.encode()
    if form in ("json", "gitlab", "sarif"):
        json.dumps(json.loads(out), ensure_ascii=False).encode()
    if form == "sarif":
        assert "caf%E9.py" in out
    if form == "junit":
        ET.fromstring(out)
    assert run("--write-baseline", "known.json")[0] == 2
    assert run("--baseline", "known.json")[0] == 2
    assert run("--fix")[0] == 2  # the one is mended, the other was not read
    with open(name) as file:
        assert "_lock_handle" in file.read()


# --- a narrowed report ---------------------------------------------------------------------------


def test_fix_leaves_what_the_baseline_holds(run, tmp_path):
    app = tmp_path / "app.py"
    app.write_text(BAD)
    assert run("--write-baseline", "known.json")[0] == 0
    app.write_text(SECOND)
    assert run("--baseline", "known.json", "--fix")[0] == 0
    assert app.read_text().startswith(BAD)
    assert '_lock_handle = open("other.lock"' in app.read_text()


def test_fix_leaves_lines_that_read_the_same_and_are_known(run, tmp_path):
    app = tmp_path / "app.py"
    once = f"{LINE}\n"
    app.write_text(BAD + once)
    known = len(json.loads(run("--format", "json")[1])["findings"])
    assert run("--write-baseline", "known.json")[0] == 0
    before = app.read_text()
    code, _out, err = run("--baseline", "known.json", "--fix")
    assert (code, known > 0, "0 findings mended" in err) == (0, True, True)
    assert app.read_text() == before


# --- --crash-test of a module that fails ---------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("import sys; sys.exit(7)", "SystemExit"),
        ("raise SystemExit", "SystemExit"),
        ("def f(:", "SyntaxError"),
    ],
)
def test_a_module_that_fails_at_its_import_ends_with_2(run, tmp_path, monkeypatch, body, says):
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"fails_{abs(hash(body))}"
    (tmp_path / f"{name}.py").write_text(body + "\n")
    code, _out, err = run("--crash-test", f"{name}:factory")
    assert (code, says in err, "Traceback" in err) == (2, True, False)
