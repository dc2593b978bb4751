"""Records `lifehold demo` in a pseudo terminal and draws what was to be seen: docs/assets/demo.svg.

Promise: nothing is staged; every line stands as it was printed. The first frame is still and tells
the whole story: of each scene its title and what came of it. Where moving pictures are shown and
wanted, the scenes are played after that, each line after the time it took; in the end the first
frame is back. Elsewhere it stays. The picture asks nobody's server for anything: it has no font
and no script.

    python tools/picture.py docs/assets/demo.svg                  as wide as a terminal
    python tools/picture.py docs/assets/demo-phone.svg 50         narrow enough for a phone
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import sys
import termios
import time
from html import escape
from itertools import takewhile
from pathlib import Path

COLUMNS, ROWS = 100, 60
ERASE = "\r\x1b[J"  # what is before it on a line was painted over
FONT = "'DejaVu Sans Mono', ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"
WIDE, HIGH, PAD, BAR = 8.0, 19.0, 20.0, 36.0  # pixels: of a character, a line, the frame
STILL = 6.0  # seconds for which the first frame stands before it moves
LAST = 4.0  # seconds for which the last scene stands when it is over
COLOURS = {"31": "#ff7b72", "32": "#56d364", "33": "#e3b341", "36": "#56d4dd", "2": "#8b949e"}
TITLE = re.compile(r"\x1b\[1m\d  ")
SPOKEN = re.compile(r"\x1b\[2m *\d")  # a line with its time; what follows without one goes on
# What came of the scenes: the lines that the first frame shows, with those that go on.
TOLD = ("waiting for", "from kill -9", "StaleToken", "could not acquire", "by \x1b[32mpid")
STYLE = """
  @media (prefers-reduced-motion: no-preference) {
    g.line { animation: show 0.15s linear both; }
    @keyframes show { from { opacity: 0; } to { opacity: 1; } }
    @keyframes hide { from { opacity: 1; } to { opacity: 0; } }
  }
"""
MOVED = "@media (prefers-reduced-motion: no-preference) {{ {} }}"

Lines = list[tuple[float, str]]


def record(command: list[str], columns: int = COLUMNS) -> Lines:
    """What `command` printed, line by line, each with the second in which it came."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS=str(columns), LINES=str(ROWS))
        os.environ.pop("NO_COLOR", None)
        os.execvp(command[0], command)  # noqa: S606
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
    began, lines, rest = time.monotonic(), [], ""
    while True:
        try:
            rest += os.read(terminal, 65536).decode()
        except OSError:  # EIO: it has ended
            break
        *whole, rest = rest.split("\r\n")
        now = time.monotonic() - began
        lines += [(now, line.rpartition(ERASE)[2]) for line in whole]
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status:
        raise SystemExit(f"{command} ended with {status}: {rest}")
    return lines


def runs(line: str) -> list[tuple[str, str]]:
    """The line as (style, text): the number of a colour, `1` for bold, or nothing."""
    style, found = "", []
    for part in re.split(r"(\x1b\[[0-9;]*m)", line):
        if part.startswith("\x1b["):
            style = part[2:-1].removeprefix("0")
        elif part:
            found.append((style, part))
    return found


def scenes(lines: Lines) -> list[Lines]:
    """The lines from each title to the next; what stands before the first is left out."""
    found: list[Lines] = []
    for second, line in lines:
        if TITLE.match(line) or not found:
            found.append([])
        found[-1].append((second, line))
    return [scene for scene in found if TITLE.match(scene[0][1])] or found


def still(parts: list[Lines]) -> list[str]:
    """The first frame: of each scene its title, and what came of it."""
    frame: list[str] = []
    for part in parts:
        lines = [line for _, line in part]
        title = list(takewhile(lambda line: not SPOKEN.match(line), lines))
        frame += ["", *title] if frame else title
        for at, line in enumerate(lines):
            if SPOKEN.match(line) and any(word in line for word in TOLD):
                goes_on = takewhile(lambda more: more.startswith(" "), lines[at + 1 :])
                frame += [line, *goes_on]
    return frame


def drawn(lines: Lines, title: str, columns: int = COLUMNS) -> str:
    """The picture, as SVG."""
    parts = scenes(lines)
    frame = still(parts) if len(parts) > 1 else []
    rows = max(len(frame), *(len(part) for part in parts))
    width, height = columns * WIDE + 2 * PAD, rows * HIGH + BAR + 2 * PAD - 8
    out = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}"'
            f' width="{width:g}" height="{height:g}" role="img" aria-label="{escape(title)}"'
            f' font-family="{FONT}" font-size="13" fill="#c9d1d9" xml:space="preserve">'
        ),
        f"<style>{STYLE}</style>",
        f'<rect width="{width:g}" height="{height:g}" rx="10" fill="#0d1117"/>',
    ]
    out += [
        f'<circle cx="{PAD + at * 20:g}" cy="{BAR / 2 + 2:g}" r="6" fill="{colour}"/>'
        for at, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    ]
    out.append(
        f'<text x="{width / 2:g}" y="{BAR / 2 + 6:g}" text-anchor="middle" fill="#8b949e">'
        f"{escape(title)}</text>"
    )
    if frame:
        out += [*the_still(frame, parts), *the_scenes(parts)]
    else:
        out += [text for at, (_, line) in enumerate(lines) for text in texts(at, line)]
    return "\n".join([*out, "</svg>", ""])


def the_still(frame: list[str], parts: list[Lines]) -> list[str]:
    """The first frame: there until the first scene begins, and again when the last is over."""
    back = STILL + parts[-1][-1][0] - parts[0][0][0] + LAST
    moves = f"hide 0.4s {STILL - 0.4:g}s forwards, show 0.4s {back:g}s forwards"
    style = MOVED.format(f"#still {{ animation: {moves}; }}")
    inside = [text for at, line in enumerate(frame) for text in texts(at, line)]
    return [f"<style>{style}</style>", '<g id="still">', *inside, "</g>"]


def the_scenes(parts: list[Lines]) -> list[str]:
    """The scenes, one in the place of the other; not to be seen where nothing moves."""
    begun, out = parts[0][0][0], []
    for number, part in enumerate(parts, 1):
        last = number == len(parts)
        ends = part[-1][0] + LAST if last else parts[number][0][0]
        moves = (
            f"show 0.15s {STILL + part[0][0] - begun:.2f}s both, "
            f"hide 0.15s {STILL + ends - begun - 0.15:.2f}s forwards"
        )
        out.append(f"<style>{MOVED.format(f'#scene{number} {{ animation: {moves}; }}')}</style>")
        out.append(f'<g id="scene{number}" class="scene" opacity="0">')
        for at, (second, line) in enumerate(part):
            if line:
                delay = STILL + second - begun
                out.append(f'<g class="line" style="animation-delay:{delay:.2f}s">')
                out += [*texts(at, line), "</g>"]
        out.append("</g>")
    return out


def texts(at: int, line: str) -> list[str]:
    """What stands in one line, each part with its look."""
    y, column, out = BAR + PAD + at * HIGH, 0, []
    for style, text in runs(line):
        left = len(text) - len(text.lstrip(" "))
        shown = text.strip(" ")
        if shown:
            x = PAD + (column + left) * WIDE
            look = ' font-weight="bold" fill="#f0f6fc"' if style == "1" else ""
            look = f' fill="{COLOURS[style]}"' if style in COLOURS else look
            out.append(
                f'<text x="{x:g}" y="{y:g}" textLength="{len(shown) * WIDE:g}"'
                f' lengthAdjust="spacingAndGlyphs"{look}>{escape(shown)}</text>'
            )
        column += len(text)
    return out


def main(target: str, columns: int = COLUMNS) -> None:
    beside = str(Path(sys.executable).parent)
    os.environ["PATH"] = beside + os.pathsep + os.environ.get("PATH", os.defpath)
    lines = record([sys.executable, "-m", "lifehold", "demo"], columns)
    Path(target).write_text(drawn(lines, "lifehold demo", columns), encoding="utf-8")
    print(f"{target}: {len(lines)} lines, {lines[-1][0]:.0f} s")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
