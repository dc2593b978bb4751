"""Every --json keeps its published schema: each command, in each kind of answer that it has."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from lifehold import Lock
from lifehold.cli.options import COMMANDS
from lifehold.ops import history
from lifehold.ops.watch import ENDED, Alert, AlertSender, Config

DOCS = Path(__file__).parents[2] / "docs" / "reference"


def published():
    """Schema -> the JSON schema of its answers."""
    return {
        name: json.loads(file.read_text())
        for file in DOCS.glob("*.schema.json")
        for name in re.findall(r"lifehold\.[a-z-]+/\d+", file.read_text())
    }


PUBLISHED = published()
# Command -> lines of words. {held}, {free}, {dead}, {db}: what the test has made.
LINES = {
    "run": ["free -- true", "-n held -- true", "-n --skip-ok held -- true", "free -- false",
            "free -- /nowhere"],
    "once": ["one -- true", "one -- true", "--forget one", "-n held -- true"],
    "who": ["held", "free", "never", "./dead.pid", "./dead.pid held", "{db}#a"],
    "ls": ["", "./", "--stale ./", "{db}", "--held"],
    "wait": ["-w 0 held", "free", "-w 0 ./dead.pid"],
    "log": ["", "free", "never", "--event skip held"],
    "clear": ["-n ./dead.pid", "./dead.pid", "held", "never", "./none", "--force wrong held"],
    "doctor": ["./", "redis://127.0.0.1:1/0"],
    "top": ["--once ./", "--once"],
    "check": ["", "free", "--token 1 held", "--token 1 never"],
    "touch": ["", "free"],
    "store": ["migrate {db}", "check {db}", "check sqlite:////nowhere/at/all/x.db",
              "check postgresql://127.0.0.1:1/x", "migrate postgresql://127.0.0.1:1/x"],
    "choose": ["--hosts one --who processes --how few --late no", "--hosts one --who tool",
               "--hosts several --place folder --how one --late yes"],
    "simulate": ["--hours 0.2", "--hours 0.2 --ttl 2 --pause 60"],
}  # fmt: skip


def test_every_command_that_answers_in_json_is_asked_here():
    asked = {name for name, each in COMMANDS.items() if "json" in [o.name for o in each.options]}
    assert asked == set(LINES)


@pytest.mark.parametrize("name", LINES)
def test_every_answer_in_json_keeps_its_published_schema(lifehold, name):
    folder = lifehold.folder
    db = f"sqlite:///{folder}/x.db"

    def call(*words):
        return subprocess.run(
            [sys.executable, "-m", "lifehold", *words], cwd=folder, env=lifehold.environment,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    (folder / "dead.pid").write_text("4194000\n")
    call("run", "free", "--", "true")
    if name in ("who", "ls"):
        call("run", f"{db}#a", "--", "true")
    with Lock(folder / "held.lock"):
        call("run", "-n", "held", "--", "true")  # for its history
        for line in LINES[name]:
            act, *rest = line.format(db=db).split() or [""]
            words = (
                (name, act, "--json", *rest) if name == "store" else (name, "--json", act, *rest)
            )
            done = call(*(word for word in words if word))
            text = done.stderr.splitlines()[-1] if name in ("run", "once") else done.stdout
            found = json.loads(text)
            jsonschema.validate(found, PUBLISHED[found["schema"]])
            assert found["schema"].startswith(f"lifehold.{name}".replace("touch", "check")), line
            assert "Traceback" not in done.stderr


@pytest.mark.parametrize("event", [*history.EVENTS, "of a newer version"])
def test_every_event_of_a_history_keeps_the_published_schema(lifehold, event):
    lifehold("run", "job", "--", "true")
    file = lifehold.folder / ".job.lock.history"
    line = file.read_text()
    assert '"hold"' in line
    file.write_text(line.replace('"hold"', f'"{event}"'))
    found = json.loads(lifehold("log", "--json", "job").stdout)
    assert [each["event"] for each in found["entries"]] == [event]
    jsonschema.validate(found, PUBLISHED["lifehold.log/1"])


def test_an_alert_keeps_the_published_schema(tmp_path):
    log = tmp_path / "log"
    AlertSender(Config(("/x",), log=str(log)))(
        Alert("stale", ENDED, "/x/a", "its holder is gone", 1, 2)
    )
    found = json.loads(log.read_text())
    jsonschema.validate(found, PUBLISHED["lifehold.alert/1"])
