"""Runs the code of a documentation page as its reader would: from top to bottom, in one folder.

    python tests/snippets.py docs/tutorials/first-lock.md        runs it in the current folder

- The ```python blocks of a page share one namespace; a block that must fail catches its error.
- A ```console block is a shell session: `$ ` starts a command, `> ` goes on with it, other lines
  are what it must print (both streams). `...` stands for any text; a line of `...` for any lines.
  A command without lines below it may print anything. Each command must end with status 0; to
  show another status the page prints it: `$ lifehold who x; echo "status $?"`.
- A ```bash or ```sh block is a script, run with -eu. A ```json block must be JSON.
- `<!-- needs: package:httpx -->` on a line of its own: the ground the page stands on (ground.py).
- `<!-- not run: reason -->` on the line above a block excuses it; the reasons are listed by a test.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import traceback
from dataclasses import dataclass
from pathlib import Path

SECONDS_OF_A_BLOCK = 150
RUN = {"python", "console", "bash", "sh", "json"}


class SnippetFailed(Exception):
    """A block did not do what its page says; the text is for the writer of the page."""


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, its text, the line where the text begins."""

    language: str
    text: str
    line: int
    excuse: str = ""


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page that are code to be run, or excused from it."""
    found: list[Block] = []
    lines = page.splitlines()
    at = 0
    while at < len(lines):
        fence = re.fullmatch(r"(\s*)(```+|~~~+)\s*([\w-]*)[^`]*", lines[at])
        at += 1
        if not fence:
            continue
        begin = at
        while at < len(lines) and lines[at].strip() != fence[2]:
            at += 1
        if at == len(lines):
            raise SnippetFailed(f"line {begin}: a block is never closed")
        text = textwrap.dedent("\n".join(lines[begin:at])) + "\n"
        above = lines[begin - 2] if begin > 1 else ""
        excuse = re.fullmatch(r"\s*<!-- not run: (.+) -->", above)
        if fence[3] in RUN:
            found.append(Block(fence[3], text, begin + 1, excuse[1] if excuse else ""))
        at += 1
    return found


@dataclass
class Command:
    """One command of a console block and the lines it must print (None: anything)."""

    text: str
    expected: list[str]


def commands(block: Block) -> list[Command]:
    found: list[Command] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append(Command(line[2:], []))
        elif not found:
            raise SnippetFailed(f"line {block.line}: a console block begins with `$ `")
        elif line.startswith("> ") and not found[-1].expected:
            found[-1].text += "\n" + line[2:]
        else:
            found[-1].expected.append(line)
    return found


def matches(expected: list[str], printed: str) -> bool:
    """Is `printed` what the page shows, `...` standing for anything?"""
    pattern = ""
    for line in expected:
        if line.strip() == "...":
            pattern += r"(?:.*\n)*"
        else:
            pattern += r".*".join(re.escape(part) for part in line.rstrip().split("...")) + r" *\n"
    lines = printed.strip("\n").splitlines()
    text = "".join(f"{line.rstrip()}\n" for line in lines)
    return re.fullmatch(pattern.replace(r"\n", "\n"), text) is not None


def run_console(block: Block) -> None:
    """One shell for the whole block, so that `&`, `$!` and `cd` mean what the reader thinks."""
    session = commands(block)
    mark = f"@@{os.getpid()}@@"
    script = "".join(f"{each.text}\nprintf '\\n{mark} %s\\n' $?\n" for each in session)
    printed = shell(["sh"], script, block)
    answers = re.split(rf"\n{mark} (\d+)\n", printed)
    for number, command in enumerate(session):
        if 2 * number + 1 >= len(answers):
            raise SnippetFailed(f"line {block.line}: the shell ended before: {command.text}")
        said, status = answers[2 * number], answers[2 * number + 1]
        if status != "0":
            raise SnippetFailed(f"$ {command.text}\nended with status {status}:\n{said}")
        if command.expected and not matches(command.expected, said):
            wanted = "\n".join(command.expected)
            raise SnippetFailed(f"$ {command.text}\nthe page shows:\n{wanted}\nit printed:\n{said}")


def run_script(block: Block) -> None:
    script = block.text + "printf '\\n@@done@@\\n'\n"
    printed = shell([block.language, "-eu"], script, block)
    if not printed.endswith("\n@@done@@\n"):
        raise SnippetFailed(f"the script failed:\n{printed}")


def shell(command: list[str], script: str, block: Block) -> str:
    """What `script` printed. Into a file: a job left in the background would hold a pipe open."""
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(
            [*command, "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            child.wait(SECONDS_OF_A_BLOCK)
        except subprocess.TimeoutExpired:
            raise SnippetFailed(
                f"line {block.line}: still running after {SECONDS_OF_A_BLOCK} s"
            ) from None
        finally:
            end_session(child.pid)
            child.wait()
        output.seek(0)
        return output.read().decode(errors="replace")


def end_session(leader: int) -> None:
    """Kill what the block left behind in the session that we opened for it."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        pass


def run_page(page: Path) -> None:
    """Run every block of `page` in the current folder; raises at the first that fails."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.excuse:
            continue
        try:
            if block.language == "python":
                # Empty lines before it, so that a traceback names the line of the page.
                code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
                exec(code, namespace)
            elif block.language == "json":
                json.loads(block.text)
            elif block.language == "console":
                run_console(block)
            else:
                run_script(block)
        except BaseException as error:
            raise SnippetFailed(f"{page}, line {block.line}: {error}") from error


def surroundings(folder: Path) -> dict[str, str]:
    """A reader's environment: this Python's commands first, nothing of ours in the home."""
    beside = str(Path(sys.executable).parent)
    return os.environ | {
        "PATH": beside + os.pathsep + os.environ.get("PATH", os.defpath),
        "HOME": str(folder),
        "LIFEHOLD_DIR": str(folder / "locks"),
        "XDG_STATE_HOME": str(folder / "state"),
        "NO_COLOR": "1",
        "TERM": "dumb",
        "LC_ALL": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def main(page: str) -> int:
    file = Path(page).resolve()
    os.environ.update(surroundings(Path.cwd()))
    sys.argv = [""]
    try:
        run_page(file)
    except SnippetFailed as failure:
        cause = failure.__cause__
        if cause is not None and not isinstance(cause, SnippetFailed):
            traceback.print_exception(cause)
        print(failure, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
