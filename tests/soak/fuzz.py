"""Structured mutations of all that `who`, `ls`, `clear -n`, `top`, `log` and `watch` read.

    PYTHONPATH=tests python -m soak.fuzz --seconds 600 [--seed N] [WHAT...]

WHAT: families, own, history, live, webhook; without one each in turn. Ends with 1 when a command
ended with a traceback, printed a control character or no JSON, took longer than 10 s, or when a
contender got in beside a live holder whose record still says that it holds. A seed says the cases.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import unit_formats as formats
from lifehold import LifeholdError, Lock
from lifehold.cli import main
from lifehold.cli.render import put
from lifehold.local import proc_locks
from lifehold.ops import foreign_verdict, history, watch
from lifehold.ops.watch import Alert, Config, Watch

SLOW, TIMES = 10.0, 3  # seconds of one command, and how often it has to be slow
NUMBERS = (
    0, -1, 1, 2, 5, 1.5, -0.0, 1e308, -1e308, 2**31, 2**31 - 1, 2**32, 2**63 - 1, 2**63, 2**64,
    10**30, float("nan"), float("inf"), float("-inf"), True, False, None, 4190000, 10**400,
)  # fmt: skip
TEXTS = (
    "", "x", "\x1b[31mred", "a\nb", "\u202eevil", "é", "\0", "9" * 50, "9" * 4301, "-1", "1.5",
    " 1", "१२", "²", "1_0", "0x10", "nan", "a" * 5000, "../../etc/passwd", "\ud800",
    "'; rm -rf ~ #", "?pidns-zz", "?pidns-ffffffffffffffffff", "localhost", formats.HOST,
    f"{formats.HOST}?pidns-1", "0001-01-01T00:00:00", "9999-12-31T23:59:59+00:00",
    "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59",
)  # fmt: skip
BYTES = (b"\0", b"\x1b[2J", b"\xff", b"\n", b"9" * 20, b"-", b"{", b"[", b'"', b" ", b"|", b"/",
         b"@", b".", b":")  # fmt: skip
LINE = (
    b'{"history":1,"event":"hold","name":"nightly","at":1795140004.123,"code":3,"waited":0.1,'
    b'"held":1.5,"token":12,"nonce":"ab-12","pid":44,"user":"u","host":"h","command":"sh -c x",'
    b'"label":"l","reason":"r","holder":"pid 4","holder_pid":4,"holder_since":1795140004.1}'
)
HOLDERS = ("kernel", "soft", "link", "generation", "directory", "folder")
HOLD = (
    "from lifehold import Lock; Lock({!r}, kind={!r}).acquire(); print('in', flush=True); input()"
)
ANSWERS = (b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 204 No\r\nX: y\r\n", b"SSH-2.0-OpenSSH\r\n",
           b"HTTP/1.1 301 M\r\nLocation: http://127.0.0.1:1/\r\n", b"HTTP/1.0 500 No\r\n",
           b"HTTP/1.1 100 C\r\n", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n",
           b"\r\n")  # fmt: skip


class Fuzz:
    """One run. `wrong`: what was out of order, each once; `counted`: the cases by kind."""

    def __init__(self, seed: int, folder: str) -> None:
        self.dice, self.folder = random.Random(seed), folder
        self.wrong: dict[tuple[object, ...], str] = {}
        self.counted: Counter[str] = Counter()
        self.holders: dict[str, tuple[str, subprocess.Popen[str]]] = {}
        self.ours = dict(self._made())

    def _made(self) -> Iterator[tuple[str, bytes | dict[str, bytes]]]:
        for kind in (*HOLDERS, "soft 30", "generation 30", "directory 30"):
            name, _, ttl = kind.partition(" ")
            path = f"{self.folder}/made-{kind}"
            with Lock(path, kind=name, **({"ttl": float(ttl)} if ttl else {})):
                found = Path(path)
                inside = found.is_dir()
                yield kind, ({each.name: each.read_bytes() for each in found.iterdir()
                              if each.is_file()} if inside else found.read_bytes())  # fmt: skip

    def close(self) -> None:
        for _, child in self.holders.values():
            child.kill()
            child.communicate()

    def note(self, key: tuple[object, ...], said: object) -> None:
        self.wrong.setdefault(key, repr(said)[:600])

    # ---- mutations

    def value(self, depth: int = 0) -> object:
        at = self.dice.random()
        if at < 0.4:
            return self.dice.choice(NUMBERS)
        if at < 0.75:
            return self.dice.choice(TEXTS)
        if depth < 3 and at < 0.88:
            return [self.value(depth + 1) for _ in range(self.dice.randrange(4))]
        if depth < 3:
            keys = ("pid", "host", "a", "write", "read", "exclusive", "cmd", "ID", "Who")
            return {self.dice.choice(keys): self.value(depth + 1)
                    for _ in range(self.dice.randrange(4))}  # fmt: skip
        return None

    def members(self, found: object) -> object:
        """JSON with other members."""
        if isinstance(found, dict):
            told = dict(found)
            for key in list(told):
                at = self.dice.random()
                if at < 0.12:
                    told[key] = self.value()
                elif at < 0.16:
                    del told[key]
                elif at < 0.5:
                    told[key] = self.members(told[key])
            if self.dice.random() < 0.05:
                told[self.dice.choice(TEXTS)] = self.value()
            return told
        if isinstance(found, list):
            return [self.members(each) if self.dice.random() < 0.5 else each for each in found]
        return self.value() if self.dice.random() < 0.3 else found

    def bytes(self, content: bytes) -> bytes:
        told = bytearray(content)
        for _ in range(self.dice.choice((0, 1, 1, 2, 4))):
            at, place = self.dice.random(), self.dice.randrange(len(told) + 1)
            if at < 0.3 and told:
                told[place % len(told)] = self.dice.randrange(256)
            elif at < 0.45:
                del told[place : place + self.dice.choice((1, 2, 8, 64))]
            elif at < 0.6:
                told[place:place] = self.dice.choice(BYTES)
            elif at < 0.75 and (numbers := list(re.finditer(rb"\d+", told))):
                chosen = self.dice.choice(numbers)
                shown = str(self.dice.choice(NUMBERS[:16])).encode()
                told[chosen.start() : chosen.end()] = shown
            elif at < 0.85:
                del told[place:]
            else:
                told[place:place] = self.dice.choice(TEXTS).encode("utf-8", "surrogatepass")
        return bytes(told)

    def text(self, content: bytes) -> bytes:
        """JSON as members, else as bytes; deep nesting now and then."""
        head, _, rest = content.partition(b"{")
        try:
            found = json.loads(b"{" + rest)
        except ValueError:
            return self.bytes(content)
        if self.dice.random() < 0.4:
            return self.bytes(content)
        told = json.dumps(self.members(found), separators=(",", ":"))
        if self.dice.random() < 0.05:
            told = told[:-1] + ',"x":' + self.dice.choice(("[", '{"a":')) * 20_000
        new = told.encode("utf-8", "surrogatepass")
        if self.dice.random() < 0.7:
            new = new.ljust(len(content) - 1 - len(head)) + b"\n"
        return head + new

    # ---- cases

    def families(self, folder: str) -> tuple[str, object]:
        """A lock of another tool."""
        makers: list[Callable[[Path], Path]] = [
            lambda at, make=make: make(at, 4190000) for make in formats.FORMATS.values()
        ]
        path = self.dice.choice([*makers, *formats.NAMELESS.values()])(Path(folder))
        files = [each for each in Path(folder).rglob("*") if each.is_file() and each.stat().st_size]
        if path.is_symlink():
            target = self.bytes(os.fsencode(path.readlink())).replace(b"\0", b"x")[:1000] or b"x"
            path.unlink()
            os.symlink(target, path)
            return str(path), target
        if not files:
            return str(path), ""
        chosen = self.dice.choice(files)
        chosen.chmod(0o644)
        chosen.write_bytes(self.text(chosen.read_bytes()))
        return str(path), chosen.read_bytes()

    def own(self, folder: str) -> tuple[str, object]:
        """A record of ours."""
        path, kind = Path(folder, "own.lock"), self.dice.choice(list(self.ours))
        content = self.ours[kind]
        if isinstance(content, bytes):
            path.write_bytes(self.text(content))
            return str(path), path.read_bytes()
        path.mkdir()
        for name, each in content.items():
            (path / name).write_bytes(self.text(each))
        return str(path), kind

    def history(self, folder: str) -> tuple[str, object]:
        path = Path(folder, "h.lock")
        path.touch()
        lines = [self.text(LINE) for _ in range(self.dice.randrange(1, 4))]
        Path(folder, ".h.lock.history").write_bytes(b"\n".join(lines) + b"\n")
        return str(path), lines

    # ---- what is asked

    def ask(self, words: list[str], said: object) -> None:
        """One command. What takes long is asked again: on a busy machine each may, once."""
        if all(self.asked(words, said) > SLOW for _ in range(TIMES)):
            self.note((words[0], "slow"), said)

    def asked(self, words: list[str], said: object) -> float:
        """The seconds of one command here: no traceback, no control character, JSON where it is."""
        out, caught = io.StringIO(), []
        hook, began = sys.excepthook, time.monotonic()
        sys.excepthook = lambda kind, error, trace: caught.append(error)
        real, file = (
            os.dup(2),
            os.open(f"{self.folder}/stderr", os.O_RDWR | os.O_CREAT | os.O_TRUNC),
        )
        os.dup2(file, 2)  # the command writes to the descriptor
        try:
            with contextlib.redirect_stdout(out):
                code = main.main(words)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            caught.append(error)
            code = None
        finally:
            sys.excepthook = hook
            os.dup2(real, 2)
            err = os.pread(file, 1 << 20, 0).decode(errors="replace")
            os.close(real)
            os.close(file)
        for error in caught:
            last = traceback.extract_tb(error.__traceback__)[-1]
            self.note((words[0], type(error).__name__, last.filename, last.lineno), said)
        if code == 70:
            self.note((words[0], "status 70"), said)
        shown = out.getvalue() + err
        if any(not each.isprintable() and each != "\n" for each in shown):
            self.note((words[0], "a control character"), said)
        if "--json" in words and code in (0, 1, 3):
            try:
                json.loads(out.getvalue(), parse_constant=lambda name: 1 / 0)
            except (ValueError, ZeroDivisionError):
                self.note((words[0], "no JSON"), said)
        return time.monotonic() - began

    def case(self, what: str) -> None:
        self.counted[what] += 1
        if what == "live":
            return self.live()
        if what == "webhook":
            return self.webhook()
        folder = f"{self.folder}/case"
        shutil.rmtree(folder, ignore_errors=True)
        Path(folder).mkdir()
        path, said = getattr(self, what)(folder)
        for words in ([["log", path], ["log", "--json", path], ["log", "-l", "1", path]]
                      if what == "history" else
                      [["who", path], ["who", "--json", path], ["ls", "-R", folder],
                       ["ls", "--json", folder], ["clear", "-n", "-R", folder],
                       ["top", "--once", folder], ["wait", "-w", "0", path]]):  # fmt: skip
            self.ask(words, said)
        told: list[Alert] = []
        try:
            Watch(Config((folder,), skips=1, silent=1.0, held=1.0), told.append).round()
            history.read(path)
        except Exception as error:
            self.note(("watch", type(error).__name__), said)
        return None

    def live(self) -> None:
        """A live holder, its record mutated: a contender may be in only by a documented way."""
        kind = self.dice.choice(HOLDERS)
        if kind not in self.holders:
            folder = tempfile.mkdtemp(dir=self.folder)
            child = subprocess.Popen(
                [sys.executable, "-c", HOLD.format(f"{folder}/x.lock", kind)], text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
            assert child.stdout is not None
            assert child.stdout.readline() == "in\n"
            self.holders[kind] = folder, child
        folder, child = self.holders[kind]
        path = f"{folder}/x.lock"
        files = [each for each in Path(folder).rglob("*") if each.is_file()]
        chosen = self.dice.choice(files)
        before = chosen.read_bytes()
        mutated = self.text(before)
        overwrite(chosen, mutated)
        lease = None
        try:
            lease = Lock(path, kind=kind, wait=0).acquire()
            if kind == "kernel" or mutated == before:
                self.note((kind, "got in beside a live holder"), mutated)
        except LifeholdError:
            pass
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            self.note((kind, type(error).__name__, last.filename, last.lineno), mutated)
        if lease is None and chosen.exists():
            overwrite(chosen, before)
            return
        with contextlib.suppress(LifeholdError):
            if lease is not None:
                lease.release()
        child.kill()
        child.communicate()
        shutil.rmtree(folder, ignore_errors=True)
        del self.holders[kind]

    def webhook(self) -> None:
        """What a server may answer: never an exception of another kind, never told but by 2xx."""
        parts = [self.bytes(self.dice.choice(ANSWERS)) for _ in range(self.dice.randrange(1, 6))]
        answer = b"".join(parts)
        with Server(answer) as port:
            teller = watch.AlertSender(Config(("/w",), webhook=f"http://127.0.0.1:{port}/x"))
            teller(Alert("stale", "begun", "/w/a", "gone", 1.0, 2.0))
        if not teller.failures and not re.search(rb"HTTP/\S* +2\d\d", answer):
            self.note(("webhook", "told what no server took"), answer)


class Server:
    """Answers one request with the given bytes, in a process of its own."""

    TEXT = (
        "import socket, sys\ns = socket.create_server(('127.0.0.1', 0))\n"
        "print(s.getsockname()[1], flush=True)\nc, _ = s.accept()\nc.settimeout(5)\n"
        "c.recv(65536)\nc.sendall(sys.stdin.buffer.read())\nc.close()"
    )

    def __init__(self, answer: bytes) -> None:
        self.answer = answer

    def __enter__(self) -> int:
        self.child = subprocess.Popen(
            [sys.executable, "-S", "-c", self.TEXT], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        port = int(self.child.stdout.readline())
        self.child.stdin.write(self.answer)
        self.child.stdin.close()
        return port

    def __exit__(self, *_: object) -> None:
        self.child.kill()
        self.child.wait()
        assert self.child.stdout is not None
        self.child.stdout.close()


def overwrite(path: Path, content: bytes) -> None:
    """In place: the inode is the lock."""
    with open(path, "r+b") as file:
        file.write(content)
        file.truncate()


WHAT = ("families", "own", "history", "live", "webhook")


@contextlib.contextmanager
def few_processes() -> Iterator[None]:
    """A look at all processes takes most of the time of a case, and tells nothing about content."""
    real = proc_locks.processes
    few = lambda: [1, os.getpid()]  # noqa: E731
    proc_locks.processes = foreign_verdict.processes = few
    try:
        yield
    finally:
        proc_locks.processes = foreign_verdict.processes = real


def play(seed: int, whats: tuple[str, ...], *, cases: int = 0, seconds: float = 0.0) -> Fuzz:
    """So many cases of each, or as many as go into so many seconds of each."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        before = os.environ.get("LIFEHOLD_DIR")
        os.environ["LIFEHOLD_DIR"] = f"{folder}/names"
        fuzz = Fuzz(seed, folder)
        try:
            for what in whats:
                until, left = time.monotonic() + seconds, cases
                with few_processes():
                    while left > 0 or time.monotonic() < until:
                        fuzz.case(what)
                        left -= 1
        finally:
            fuzz.close()
            if before is None:
                del os.environ["LIFEHOLD_DIR"]
            else:
                os.environ["LIFEHOLD_DIR"] = before
    return fuzz


def _main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="of each WHAT")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("what", nargs="*", choices=[*WHAT, []], default=[])
    given = parser.parse_args()
    fuzz = play(given.seed, tuple(given.what) or WHAT, seconds=given.seconds)
    for key, said in fuzz.wrong.items():
        put(f"{key}: {said}")
    put(f"cases {dict(fuzz.counted)}, out of order {len(fuzz.wrong)}")
    return 1 if fuzz.wrong else 0


if __name__ == "__main__":
    sys.exit(_main())
