"""A critical section that notices a second one inside, whoever and in whatever namespace.

The canary is a file made with O_EXCL on entry and unlinked on exit; its content names who is in.
Names are given, since process numbers repeat across namespaces. Inside, each entry appends a line
`token name` to a log, so that the order of the log is the order of the entries. The remains of a
process of which the killer wrote `killed.<name>` beforehand are no overlap.

Imports `os` alone: it is loaded by processes whose start is part of each round.
"""

import os


class Canary:
    """One party's way in and out of the section of this folder."""

    def __init__(self, folder, name):
        self.folder, self.name = str(folder), name
        self.path = f"{folder}/canary"

    def enter(self, token=None):
        """Whether nobody else is inside. Only after True is `leave` to be called."""
        for _ in range(1000):
            try:
                fd = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
            except FileExistsError:
                inside = self._inside()
                if inside and os.path.exists(f"{self.folder}/killed.{inside}"):
                    os.unlink(self.path)
                    continue
                self._append("overlaps", f"{inside or 'unknown'} {self.name}\n")
                return False
            os.write(fd, self.name.encode())
            os.close(fd)
            self._append("entries", f"{'-' if token is None else token} {self.name}\n")
            return True
        raise AssertionError("the remains of the dead do not go away")

    def leave(self):
        os.unlink(self.path)

    def _inside(self):
        """Who is in: its name follows the making of the file by one system call."""
        for _ in range(100):
            try:
                with open(self.path) as file:
                    found = file.read().strip()
            except FileNotFoundError:
                return None  # gone meanwhile
            if found:
                return found
        return None

    def _append(self, where, line):
        flags = os.O_CREAT | os.O_APPEND | os.O_WRONLY
        fd = os.open(f"{self.folder}/{where}", flags, 0o666)
        os.write(fd, line.encode())
        os.close(fd)


def in_shell(folder, name):
    """The same section as words of sh, where `set -C` makes `>` open with O_EXCL.

    The name is written without a line end, as above; a reader may find the file still empty.
    """
    return (
        f"set -C; if printf {name} 2>/dev/null >{folder}/canary;"
        f" then echo - {name} >>{folder}/entries; rm {folder}/canary;"
        f" else read inside 2>/dev/null <{folder}/canary;"
        f' echo "${{inside:-unknown}} {name}" >>{folder}/overlaps; fi'
    )


def killed(folder, name):
    """To be told before the process of that name is killed."""
    os.close(os.open(f"{folder}/killed.{name}", os.O_CREAT | os.O_WRONLY, 0o666))


def entries(folder):
    """(token or None, name) in the order of entry."""
    pairs = (line.split() for line in _lines(folder, "entries"))
    return [(None if token == "-" else int(token), name) for token, name in pairs]


def overlaps(folder):
    """(who was in or "unknown", who came) of each overlap."""
    return [tuple(line.split()) for line in _lines(folder, "overlaps")]


def not_growing(tokens):
    """How many tokens are not greater than the one before."""
    return sum(tokens[n] <= tokens[n - 1] for n in range(1, len(tokens)))


def _lines(folder, name):
    try:
        with open(f"{folder}/{name}") as file:
            return file.read().splitlines()
    except FileNotFoundError:
        return []
