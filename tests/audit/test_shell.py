"""Shell scripts, crontabs, units and containers: what is found, what is left alone, bad input."""

from __future__ import annotations

import pytest

from lifehold.audit import scan
from lifehold.audit.settings import Settings
from lifehold.audit.shell import Script

FOUND = {
    "tested, left, touched, on one line each": (
        "shell",
        '[ -f /tmp/job.lock ] && exit 1\ntouch /tmp/job.lock\nwork\nrm -f "/tmp/job.lock"\n',
        {"LH301", "LH302"},
    ),
    "tested in a group that leaves": (
        "shell",
        'L=$HOME/.job.pid\n[[ -e ${L} ]] && { echo "runs"; exit; }\necho $$ > "$L"\n',
        {"LH301"},
    ),
    "waits until it is gone": (
        "shell",
        "while [ -f job.lock ]; do\n  sleep 1\ndone\n: > job.lock\nwork\nrm job.lock\n",
        {"LH301", "LH302"},
    ),
    "made where it is not": (
        "shell",
        "if [ ! -e $LOCKFILE ]; then\n  touch $LOCKFILE\n  work\n  rm -f $LOCKFILE\nfi\n",
        {"LH301", "LH302"},
    ),
    "a pid file and its number": (
        "shell",
        (
            "if [ -f $PIDFILE ]; then\n  pid=$(cat $PIDFILE)\n  if ps -p $pid > /dev/null; then\n"
            "    exit 1\n  fi\nfi\necho $$ > $PIDFILE\n"
        ),
        {"LH301", "LH303"},
    ),
    "the number in /proc": (
        "shell",
        'read -r p < /run/app.pid\nif [ -d "/proc/$p" ]; then exit 1; fi\n',
        {"LH303"},
    ),
    "mkdir in a condition, removed at the end": (
        "shell",
        "if mkdir $LOCKDIR; then\n  work\n  rmdir $LOCKDIR\nelse\n  exit 1\nfi\n",
        {"LH302"},
    ),
    "noclobber and a trap": (
        "shell",
        (
            "if ( set -o noclobber; echo $$ > $lockfile ) 2>/dev/null; then\n"
            "  trap 'rm -f $lockfile' INT TERM EXIT\n  work\nfi\n"
        ),
        {"LH304"},
    ),
    "a trap by a function, before the lock": (
        "shell",
        (
            "cleanup() {\n  rm -rf /tmp/job.lock\n}\ntrap cleanup EXIT\n"
            "if ! mkdir /tmp/job.lock; then\n  echo runs\n  exit 1\nfi\n"
        ),
        {"LH304", "LH305"},
    ),
    "flock with a descriptor and a removal in a trap": (
        "shell",
        "exec 200>/var/lock/x.lock\nflock -n 200 || exit 1\ntrap 'rm -f /var/lock/x.lock' EXIT\n",
        {"LH306"},
    ),
    "flock with a command": (
        "shell",
        "flock -w 5 /tmp/a.lock make all\nrm -f /tmp/a.lock\n",
        {"LH306"},
    ),
    "a bounded flock, not asked": ("shell", "exec 9>/tmp/a\nflock -w 10 9\nwork\n", {"LH307"}),
    "an age by stat": (
        "shell",
        (
            "age=$(( $(date +%s) - $(stat -c %Y $LOCKFILE) ))\n"
            "if [ $age -gt 3600 ]; then\n  rm -f $LOCKFILE\nfi\n"
        ),
        {"LH308"},
    ),
    "a crontab": (
        "cron",
        "MAILTO=root\n*/5 * * * * [ -f /tmp/x.lock ] || (touch /tmp/x.lock; job; rm /tmp/x.lock)\n",
        {"LH301", "LH302"},
    ),
    "a crontab whose rows say who runs them": (
        "cron",
        (
            "*/5 * * * * root flock -n /tmp/x.lock job; rm -f /tmp/x.lock\n"
            "@daily deploy flock -n /tmp/y.lock job; rm -f /tmp/y.lock\n"
        ),
        {"LH306"},
    ),
    "a test in a crontab whose rows say who runs them": (
        "cron",
        "* * * * * www-data [ -f /tmp/x.lock ] || (touch /tmp/x.lock; job; rm /tmp/x.lock)\n",
        {"LH301", "LH302"},
    ),
    "a crontab of one user": (
        "cron",
        "*/5 * * * * flock -n /tmp/x.lock job; rm -f /tmp/x.lock\n",
        {"LH306"},
    ),
    "a unit": (
        "systemd",
        "[Service]\nExecStart=/bin/sh -c 'exec 9>/run/a.lock; flock -n 9; work'\n",
        {"LH307"},
    ),
    "a shell in a container": (
        "docker",
        'FROM a\nCMD ["sh", "-c", "if [ -f a.lock ]; then exit 1; fi; touch a.lock; work"]\n',
        {"LH301"},
    ),
    "rails in a container": (
        "docker",
        'FROM ruby\nCMD ["rails", "server", "-b", "::"]\n',
        {"LH309"},
    ),
    "two services share their pid files": (
        "compose",
        (
            "services:\n  a:\n    volumes:\n      - type: volume\n        source: run\n"
            "        target: /app/pids\n  b:\n    volumes: \n      - run:/app/pids\n"
        ),
        {"LH310"},
    ),
}
CLEAN = {
    "flock as it should be": "exec 9>>/run/a.lock\nflock -n 9 || { echo runs; exit 1; }\nwork\n",
    "flock around a command": "flock -n /run/a.lock make all\n",
    "flock that stops the script": "set -e\nexec 9>>/run/a.lock\nflock -n 9\nwork\n",
    "flock asked by its status": "flock -n 9\nif [ $? -ne 0 ]; then exit 1; fi\n",
    "flock without a bound": "exec 9>/run/a.lock\nflock 9\nwork\n",
    "flock in a function that answers": "lock() {\n  exec 9>/run/a.lock\n  flock -n 9\n}\n",
    "a data file": "[ -f data.txt ] || touch data.txt\n",
    "a package tool's lock": "if [ ! -f poetry.lock ]; then\n  touch poetry.lock\nfi\n",
    "a child of one's own": "work &\npid=$!\nwhile kill -0 $pid; do sleep 1; done\n",
    "a process by its name too": (
        'p=$(cat $PIDFILE)\ntest "$(cat /proc/$p/cmdline)" = x && kill -0 $p\n'
    ),
    "a folder of locks": "mkdir -p /var/lock/app || exit 1\n",
    "a removal before a start": "rm -f /run/app.pid\nexec app\n",
    "text that only speaks of it": "cat <<EOF\n[ -f a.lock ] && exit\ntouch a.lock\nEOF\n",
    "a comment": "# [ -f a.lock ] && exit\n# touch a.lock\n",
    "an old log": "find /var/log -name '*.log' -mmin +60 -delete\n",
    "a block": "if [ -f /tmp/block ]; then exit; fi\ntouch /tmp/block\n",
}


def codes(kind: str, text: str, name: str = "") -> set[str]:
    return {hit[0] for hit in scan.hits_of_unit(name or f"x.{kind}", kind, text)}


@pytest.mark.parametrize("name", FOUND)
def test_a_defect_is_found_by_its_rules_and_no_other(name):
    kind, text, expected = FOUND[name]
    assert codes(kind, text) == expected


@pytest.mark.parametrize("name", CLEAN)
def test_what_is_right_is_left_alone(name):
    assert codes("shell", CLEAN[name]) == set()


def test_an_entrypoint_removes_the_pid_file_or_is_told():
    start = "exec puma --pidfile tmp/server.pid\n"
    assert codes("shell", start, "docker-entrypoint.sh") == {"LH309"}
    assert codes("shell", "rm -f tmp/server.pid\n" + start, "docker-entrypoint.sh") == set()
    assert codes("shell", start, "start-on-a-host.sh") == set()


def test_a_finding_stands_on_the_line_of_its_file(tmp_path):
    (tmp_path / "crontab").write_text(FOUND["a crontab"][1])
    (tmp_path / "job").write_text("#!/usr/bin/env bash\n" + FOUND["an age by stat"][1])
    (tmp_path / "mycrontab").write_text("\n" + FOUND["a crontab of one user"][1])
    (tmp_path / "notes").write_text(FOUND["an age by stat"][1])
    found = scan.audit([str(tmp_path)], Settings()).findings
    assert [(f.path.rpartition("/")[2], f.line, f.code) for f in found] == [
        ("crontab", 2, "LH301"),
        ("crontab", 2, "LH302"),
        ("job", 4, "LH308"),
        ("mycrontab", 2, "LH306"),
    ]


def test_a_comment_silences_a_line_of_a_script_and_an_idle_one_is_found(tmp_path):
    text = "exec 9>/tmp/a\n# lifehold: ignore[LH307] -- why\nflock -n 9\nwork\n"
    (tmp_path / "a.sh").write_text(text)
    report = scan.audit([str(tmp_path)], Settings())
    assert (report.findings, report.suppressed) == ([], 1)
    (tmp_path / "a.sh").write_text("lock=1 # lifehold: ignore[LH307] -- gone\n")
    assert [f.code for f in scan.audit([str(tmp_path)], Settings()).findings] == ["LH001"]


@pytest.mark.parametrize(
    "text",
    ["", "'", '"$(', "if [ -f a.lock", "((((", "))))", "}" * 50, "case x in", "<<", "cat <<E\nx",
     "f() f() {", "esac fi done", "$" * 99, "if " * 3000, "(" * 20_000, "function", "\\"],
)  # fmt: skip
def test_text_that_is_no_script_ends_early_and_raises_nothing(text):
    for kind in ("shell", "cron", "systemd", "docker", "compose"):
        codes(kind, text + "\nlock")


def test_a_script_of_ten_thousand_commands_is_read_in_time():
    script = Script("a.sh", "if [ -f a.lock ]; then echo x; fi\n" * 10_000)
    assert len(script.commands) == 20_000


SUBSTITUTED = {
    "a test and a touch": (
        "out=$(if [ -f run.lock ]; then exit 1; fi; touch run.lock; work; rm -f run.lock)\n",
        {"LH301", "LH302"},
    ),
    "a flock over lines": ('out="$(\n  exec 9>run.lock\n  flock -n 9\n  work\n)"\n', {"LH307"}),
    "a flock in a flag": ("value=`date` name=$(flock -n 9) || exit 1\n", set()),
    "arithmetic": ("left=$(( $(date +%s) - $(stat -c %Y data.txt) ))\n", set()),
    "a number that is read": ("pid=$(cat /run/app.pid)\nkill -HUP $pid\n", set()),
}


@pytest.mark.parametrize("name", SUBSTITUTED)
def test_what_stands_in_a_substitution_is_read(name):
    text, codes = SUBSTITUTED[name]
    found = scan.of_text("app.sh", f"#!/bin/bash\n{text}", Settings())
    assert {each.code for each in found} == codes
