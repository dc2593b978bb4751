"""Locks of other tools, written byte by byte as those tools write them.

`FORMATS[name](folder, pid)` makes one whose holder is process `pid` of this host, and gives the
path to ask for. What the real tools write is compared by tests/soak/families.py.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

HOST = socket.gethostname()


def file(folder: Path, name: str, content: str | bytes, mode: int | None = None) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    if mode is not None:
        path.chmod(mode)
    return path


def link(folder: Path, name: str, target: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)
    return path


def start_of(pid: int) -> int:
    boot = int(Path("/proc/sys/kernel/random/boot_id").read_text().replace("-", ""), 16)
    try:
        ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        ticks = 1
    return boot << 64 | ticks


def swap(pid: int) -> bytes:
    head = b"b0VIM 9.0\0\0\0" + (4096).to_bytes(4, "little") + bytes(8) + pid.to_bytes(4, "little")
    return head + b"ana".ljust(40, b"\0") + HOST.encode().ljust(40, b"\0") + b"/tmp/x".ljust(900)


def borg(folder: Path, pid: int) -> Path:
    file(folder, f"repo/lock.exclusive/{HOST}@44550336.{pid}-0", "")
    return folder / "repo/lock.exclusive"


def strict(folder: Path, pid: int) -> Path:
    record = f"filelock-strict-v1\n{'a' * 32}\n{pid}\n{HOST.encode().hex()}\n{start_of(pid)}\n"
    file(folder, f"s.lock.filelock/claims/held-v1-{'a' * 32}.claim", record)
    return file(folder, "s.lock", b"1\nfilelock-strict-v1\0\n0\n")


def shared(folder: Path, pid: int) -> Path:
    file(folder, "s.lock.rw/gen/HEAD", "1\n")
    record = f"filelock-rw/1\ntoken=1\npid={pid}\nhost={HOST}\nlease=90.0\nnonce={'b' * 32}\n"
    file(folder, f"s.lock.rw/holders/{'c' * 32}", record)
    return folder / "s.lock.rw"


def postgres(folder: Path, pid: int) -> Path:
    text = f"{pid}\n{folder}/data\n1795181314\n5432\n/tmp\nlocalhost\n  5432001  4\nready   \n"
    (folder / "data").mkdir()
    return file(folder, "data/postmaster.pid", text)


FORMATS = {
    "chromium": lambda f, p: link(f, "SingletonLock", f"{HOST}-{p}"),
    "firefox": lambda f, p: link(f, "lock", f"127.0.1.1:+{p}"),
    "emacs": lambda f, p: link(f, ".#notes.txt", f"ana@{HOST}.{p}:1795181314"),
    "mercurial": lambda f, p: link(f, "r/.hg/wlock", f"{HOST}/effffffc:{p}"),
    "filelock-soft": lambda f, p: file(f, "a.lock", f"{p}\n{HOST}\n{start_of(p)}\n"),
    "filelock-marker": lambda f, p: file(
        f, "a.lock", f"filelock/2\npid={p}\nhost={HOST}\nmode=exclusive\ntoken={'d' * 32}\n"),
    "filelock-lease": lambda f, p: file(
        f, "a.lock", f"filelock/2\npid={p}\nhost={HOST}\nmode=lease\nduration=30.0\n"),
    "filelock-strict": strict,
    "filelock-rw": shared,
    "flufl": lambda f, p: file(f, "a.lck", f"{f}/a.lck|{HOST}|{p}|8162537485910"),
    "git-gc": lambda f, p: file(f, "r/.git/gc.pid", f"{p} {HOST}"),
    "borg": borg,
    "dvc": lambda f, p: file(f, ".dvc/tmp/rwlock", json.dumps(
        {"write": {"data.csv": {"pid": p, "cmd": "dvc repro"}}, "read": {}})),
    "vim": lambda f, p: file(f, ".x.txt.swp", swap(p)),
    "postgres": postgres,
    "celery": lambda f, p: file(f, "celerybeat.pid", f"{p}\n"),
    "gunicorn": lambda f, p: file(f, "gunicorn.pid", f"{p}\n"),
    "rails": lambda f, p: file(f, "app/tmp/pids/server.pid", f"{p}"),
    "x-server": lambda f, p: file(f, ".X0-lock", f"{p:10d}\n", 0o444),
    "uucp": lambda f, p: file(f, "LCK..ttyS0", f"{p:10d}\n"),
    "dotlockfile": lambda f, p: file(f, "mail.lock", f"{p}\n"),
    "pidfile": lambda f, p: file(f, "my.pid", f"{p}\n"),
}  # fmt: skip
# What a process of that family is called, where the verdict asks.
PROGRAMS = {
    "firefox": "firefox", "emacs": "emacs", "git-gc": "git", "vim": "vim", "postgres": "postgres",
    "celery": "celery", "gunicorn": "gunicorn", "rails": "puma",
}  # fmt: skip


def git(folder: Path) -> Path:
    for name in ("objects", "refs"):
        (folder / "r/.git" / name).mkdir(parents=True)
    file(folder, "r/.git/HEAD", "ref: refs/heads/main\n")
    return file(folder, "r/.git/index.lock", "")


def restic(folder: Path) -> Path:
    for name in ("keys", "snapshots", "data", "index"):
        (folder / "repo" / name).mkdir(parents=True)
    file(folder, "repo/config", b"\x8f\x02")
    return file(folder, f"repo/locks/{'0a' * 32}", os.urandom(150))


def terraform(folder: Path) -> Path:
    file(folder, "terraform.tfstate", "{}")
    told = {"ID": "b9b1", "Operation": "OperationTypeApply", "Info": "", "Who": f"ana@{HOST}",
            "Version": "1.9.8", "Created": "2026-11-20T02:00:04.123456789Z",
            "Path": "terraform.tfstate"}  # fmt: skip
    return file(folder, ".terraform.tfstate.lock.info", json.dumps(told))


def snakemake(folder: Path) -> Path:
    return file(folder, "w/.snakemake/locks/0.output.lock", "result.txt\n")


def torch(folder: Path) -> Path:
    ninja = "ninja_required_version = 1.3\ncxx = c++\n\ncflags = -DTORCH_EXTENSION_NAME=ext\n"
    file(folder, "torch_extensions/ext/build.ninja", ninja)
    return file(folder, "torch_extensions/ext/lock", "")


def libreoffice(folder: Path) -> Path:
    return file(
        folder, ".~lock.report.odt#", f"Ana,ana,{HOST},22.11.2026 02:30,file:///home/ana/.config;"
    )


# Locks that name no process: what is proven of them is proven otherwise.
NAMELESS = {
    "git": git,
    "restic": restic,
    "terraform": terraform,
    "snakemake": snakemake,
    "torch": torch,
    "libreoffice": libreoffice,
    "procmail": lambda folder: file(folder, "p.lock", "0", 0o444),
    "dotlockfile": lambda folder: file(folder, "m.lock", "0\n"),
}
