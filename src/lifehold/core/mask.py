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
SHORT_WORDS = frozenset("pass passin passout pw".split())
USERS = ("-u", "--user", "--proxy-user", "-U")  # curl and others: NAME:SECRET
USERS_JOINED = ("--user=", "--proxy-user=", "-u", "-U")
SECRET_P = ("mysql", "mariadb", "mycli", "sshpass")  # programs, and their kin, that take -pSECRET
DELIMITERS = frozenset(",;&?|'\"`(){}[]<>")
WITH_USERS = ("postgresql", "postgres", "mysql", "mariadb")  # schemes whose URLs name a user
LONGEST_SCHEME = 10
LONGEST = 2000  # characters of one argument that are looked at and shown


def masked_command(arguments: Iterable[str]) -> str:
    """One line for people.

    Arguments joined; what follows the name of a secret, and the user part of URLs, masked. Rather
    too much than too little.

    A guess by name, not a promise: a secret given as a bare positional argument is not recognised.
    """
    shown: list[str] = []
    before, tool = "", ""
    for argument in arguments:
        if (_announces(before) or (before == "-p" and tool == "sshpass")) and (
            not argument.startswith("--")
        ):
            shown.append(MASK)
            before = ""
            continue
        name, colon, rest = argument.partition(":")
        pair = colon and _is_pair(name, before, rest)
        tool = _tool(argument) or tool
        before = argument
        shown.append(printable(f"{name}:{MASK}" if pair else _masked(argument, tool)))
    return " ".join(shown)


def names_a_secret(name: str) -> bool:
    """Whether an option or variable of this name usually carries a secret."""
    lowered = name.lower().replace("authori", "auth").replace("author", "")
    if not SHORT_WORDS.isdisjoint(lowered.replace("-", "_").split("_")):
        return True  # DB_PASS, --pass, -passin: a compass and a bypass are none
    return any(word in lowered for word in SECRET_WORDS)


def _announces(word: str) -> bool:
    """Whether the next word is a secret: `--password`, `Bearer`."""
    option = word.startswith("-") and "=" not in word and names_a_secret(word)
    return option or word.lower().rstrip(":").endswith("bearer")


def _is_pair(name: str, before: str, rest: str) -> bool:
    """Whether `name:rest` after the word `before` is a user and a secret: `-u ana:x`, `-uana:x`."""
    joined = name.startswith(USERS_JOINED) and len(name) > 2
    return (before in USERS or joined) and not rest.startswith("//")


def _tool(word: str) -> str:
    """The program of this word, when it is one that takes a secret as -pSECRET."""
    name = word.rpartition("/")[2]
    return name if name.startswith(SECRET_P) else ""


def _masked(argument: str, tool: str = "") -> str:
    """One argument, which may be a URL, a header, a list of pairs or a whole script.

    From the first secret on, all of it is masked: where a secret ends, nobody can tell. `tool`: as
    in `_tool`, of a word before it.
    """
    argument = argument[:LONGEST]
    start, last = 0, ""  # where the word begins that we are in; the one before it
    for index, char in enumerate(argument + " "):
        word = argument[start:index]
        space = char.isspace()
        if tool and len(word) > 2 and word.startswith("-p"):
            return masked_urls(argument[: start + 2]) + MASK
        if space and index < len(argument):
            if _announces(word) or (word == "-p" and tool == "sshpass"):
                return masked_urls(argument[: index + 1]) + MASK
        if char == "=" or (char == ":" and argument[index + 1 : index + 3] != "//"):
            if names_a_secret(word or last) or (char == ":" and _is_pair(word, last, "")):
                return masked_urls(argument[:index]) + argument[index] + MASK
        elif not space and char not in DELIMITERS:
            continue
        elif space:
            tool = _tool(word) or tool
        start, last = index + 1, word or last
    return masked_urls(argument)


def masked_urls(text: str) -> str:
    """`text` with the user part of every URL masked.

    A user of a database without a password stays: the URL is the one to be used. Elsewhere it may
    be a token.
    """
    start = text.find("://")
    while start != -1:
        scheme = text[max(0, start - LONGEST_SCHEME) : start].lower()
        start = end = start + 3
        while end < len(text) and not text[end].isspace() and text[end] not in "/?#'\"":
            end += 1
        at = text.rfind("@", start, end)
        port = text[start:end].rpartition(":")[2]
        if at == -1 and ":" in text[start:end] and not port.isdigit() and text[start] != "[":
            at = text.find("@", end)  # a password with a slash in it
        if at != -1 and (":" in text[start:at] or not scheme.endswith(WITH_USERS)):
            text = text[:start] + MASK + text[at:]
            end = start + len(MASK)
        start = text.find("://", end)
    return text


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
    if code < 0x80:
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(char) or f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
