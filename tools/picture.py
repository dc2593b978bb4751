"""Records `lifehold demo` in a pseudo terminal and draws what was to be seen: docs/assets/demo.svg.

Promise: nothing is staged; every line stands as it was printed, and appears when it was printed,
where moving pictures are shown and wanted; elsewhere all lines are there from the beginning. The
picture asks nobody's server for anything: no font, no script.
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
from pathlib import Path

COLUMNS, ROWS = 100, 60
ERASE = "\r\x1b[J"  # what is before it on a line was painted over
FONT = "'DejaVu Sans Mono', ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"
WIDE, HIGH, PAD, BAR = 8.0, 19.0, 20.0, 36.0  # pixels: of a character, a line, the frame
COLOURS = {"31": "#ff7b72", "32": "#56d364", "33": "#e3b341", "36": "#56d4dd", "2": "#8b949e"}
STYLE = """
  @media (prefers-reduced-motion: no-preference) {
    g.line { animation: show 0.15s linear both; }
    @keyframes show { from { opacity: 0; } to { opacity: 1; } }
  }
"""


def record(command: list[str], columns: int = COLUMNS) -> list[tuple[float, str]]:
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


def drawn(lines: list[tuple[float, str]], title: str, columns: int = COLUMNS) -> str:
    """The picture, as SVG."""
    width, height = columns * WIDE + 2 * PAD, len(lines) * HIGH + BAR + 2 * PAD - 8
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
    for number, (second, line) in enumerate(lines):
        y, column = BAR + PAD + number * HIGH, 0
        out.append(f'<g class="line" style="animation-delay:{second:.2f}s">')
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
        out.append("</g>")
    return "\n".join([*out, "</svg>", ""])


def main(target: str) -> None:
    beside = str(Path(sys.executable).parent)
    os.environ["PATH"] = beside + os.pathsep + os.environ.get("PATH", os.defpath)
    lines = record([sys.executable, "-m", "lifehold", "demo"])
    Path(target).write_text(drawn(lines, "lifehold demo"), encoding="utf-8")
    print(f"{target}: {len(lines)} lines, {lines[-1][0]:.0f} s")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1])
