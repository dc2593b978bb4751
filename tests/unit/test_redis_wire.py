"""Commands as a Redis is sent them (store/redis/wire.py)."""

from __future__ import annotations

import pytest

from lifehold.store.redis import wire

CALL = ("EVALSHA", "f" * 40, 2, "lifehold:{a}:lease", "lifehold:{a}:line", "nonce", 30.0, 1)


def spelled(*commands):
    """By the rule itself: each word behind its number of bytes."""
    out = b""
    for command in commands:
        out += b"*%d\r\n" % len(command)
        for each in command:
            word = each if isinstance(each, bytes) else str(each).encode()
            out += b"$%d\r\n%b\r\n" % (len(word), word)
    return out


@pytest.mark.parametrize(
    "command",
    [
        CALL,
        ("EVALSHA", "f" * 40, 2, "lifehold:{ä}:lease", "lifehold:{ä}:line", "nonce"),
        ("EVALSHA", "f" * 40, 2, b"\xff:lease", "lifehold:{a}:line", "nonce"),
        ("EVALSHA", "f" * 40, 1, "lifehold:{a}:lease", "ä"),
        ("EVALSHA", "f" * 40, 1, "lifehold:{a}:lease", b"\xff"),
        ("EVALSHA", "f" * 40, 1, "k" * 5000, "nonce"),
        ("EVALSHA", "f" * 40, "1", "lifehold:{a}:lease", "nonce"),
        ("INFO",),
        ("GETRANGE", b"\xff", 0, 10),
    ],
)
def test_a_command_is_sent_the_same_however_often(command):
    wire._begins.clear()
    for _ in range(2):  # then from what is kept
        assert wire.packed([command, CALL]) == spelled(command, CALL)


def test_what_is_kept_of_calls_has_a_bound():
    wire._begins.clear()
    for number in range(2 * wire.KNOWN + 1):
        wire.packed([("EVALSHA", "f" * 40, 1, f"key{number}", "nonce")])
    assert 0 < len(wire._begins) <= wire.KNOWN
    wire.packed([("EVALSHA", "f" * 40, 1, "k" * wire.SHORT, "nonce")])
    assert not any("k" * wire.SHORT in each for each in wire._begins.values())
