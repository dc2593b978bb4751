"""Commands fit to be shown.

What looks like a secret is masked (L11), control characters are escaped.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

MASK = "***"
SECRET_WORDS = tuple(
    "password passwd passphrase secret token apikey api-key api_key access-key access_key "
    "accesskey private-key private_key credential auth pgpass pwd bearer".split()
)


def masked_command(arguments: Iterable[str]) -> str:
    """One line for people.

    Arguments joined, the values of password-like ones and URL passwords masked.

    A guess by name, not a promise: a secret given as a bare positional argument is not recognised.
    """
    shown: list[str] = []
    hide_next = False
    for argument in arguments:
        if hide_next and not (argument.startswith("-") and len(argument) > 1):
            shown.append(MASK)
            hide_next = False
            continue
        hide_next = False
        name, equals, _ = argument.partition("=")
        if equals and names_a_secret(name):
            shown.append(f"{printable(name)}={MASK}")
        elif (
            not equals and argument.startswith("-") and names_a_secret(argument)
        ) or argument.lower().rstrip(":").endswith("bearer"):
            shown.append(printable(argument))
            hide_next = True
        else:
            shown.append(printable(masked_urls(argument)))
    return " ".join(shown)


def names_a_secret(name: str) -> bool:
    """Whether an option or variable of this name usually carries a secret."""
    lowered = name.lower()
    return any(word in lowered for word in SECRET_WORDS)


def masked_urls(text: str) -> str:
    """`text` with the user part of every URL masked, and secrets of its query too."""
    start = text.find("://")
    while start != -1:
        end = start + 3
        while end < len(text) and not text[end].isspace() and text[end] not in "/?#'\"":
            end += 1
        at = text.rfind("@", start + 3, end)
        if at != -1:
            text = text[: start + 3] + MASK + text[at:]
            end = start + 3 + len(MASK) + (end - at)
        start = text.find("://", end)
    if "://" in text and "?" in text:
        head, _, query = text.partition("?")
        text = head + "?" + "&".join(_masked_pair(pair) for pair in query.split("&"))
    return text


def _masked_pair(pair: str) -> str:
    name, equals, _ = pair.partition("=")
    return f"{name}={MASK}" if equals and names_a_secret(name) else pair


def printable(text: str) -> str:
    """`text` with control characters, escapes and undecodable bytes written out.

    No terminal tricks.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that was not UTF-8 (surrogateescape)
        return f"\\x{code - 0xDC00:02x}"
    return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(char) or (
        f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
    )
