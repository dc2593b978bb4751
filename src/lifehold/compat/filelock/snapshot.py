"""One snapshot of a soft reader/writer lock: who writes, who reads, and its bytes."""

from __future__ import annotations

from ...core.value import value
from .private import is_token
from .room import MOST

FORM, DIGITS = "filelock-rw/1", 20


@value
class State:
    """Who holds the lock at one generation."""

    generation: int
    writer: str | None
    readers: frozenset[str]

    @property
    def members(self) -> frozenset[str]:
        """All of them."""
        readers, writer = self.readers, self.writer
        return readers if writer is None else readers | {writer}

    def without(self, token: str) -> State:
        """The next one, when a member has left."""
        writer = None if self.writer == token else self.writer
        return State(self.generation + 1, writer, self.readers - {token})


def numbered(generation: int) -> str:
    """Its name."""
    return f"{generation:0{DIGITS}d}"


def spelled(state: State) -> bytes:
    """The bytes of a snapshot."""
    text = f"{FORM}\ngeneration={state.generation}\n"
    if state.writer is not None:
        text += f"writer={state.writer}\n"
    for token in sorted(state.readers):
        text += f"reader={token}\n"
    return text.encode()


def parsed(content: bytes) -> State | None:
    """The snapshot; None for what is none."""
    try:
        lines = content.decode("ascii").split("\n")
    except UnicodeDecodeError:
        return None
    if len(content) > MOST or lines[0] != FORM or lines[-1]:
        return None
    number: int | None = None
    writer: str | None = None
    readers: set[str] = set()
    for line in lines[1:-1]:
        key, _, told = line.partition("=")
        if key == "generation" and number is None and is_number(told):
            number = int(told)
        elif key == "writer" and writer is None and is_token(told):
            writer = told
        elif key == "reader" and is_token(told) and told not in readers:
            readers.add(told)
        else:
            return None
    return None if number is None else State(number, writer, frozenset(readers))


def is_number(text: str) -> bool:
    return len(text) <= DIGITS and text.isdigit() and str(int(text)) == text
