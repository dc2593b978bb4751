"""Commands fit to be shown.

What looks like a secret is masked (L11), control characters are escaped.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

MASK = "***"
SECRET_WORDS = tuple(
    "password passwd passphrase passcode secret token apikey api-key api_key access-key access_key "
    "accesskey accountkey account-key account_key sharedaccess private-key private_key credential "
    "auth pgpass pwd bearer".split()
)
SHORT_WORDS = frozenset("pass passin passout pw".split())
# Of these the whole name counts: `--pin=4711`, `Cookie: x`, and not `--pin-cpu 3`.
EXACT = frozenset("pin psk otp sig sas cookie set-cookie from-literal".split())
IN_URLS = frozenset({"key"})  # of a query; `sort --key=2` names no secret
LIKE_PASSWORD = ("pas", "pw", "psw")  # how `pasword` begins too, in the query of a URL
USERS = ("-u", "--user", "--proxy-user", "-U", "--login")  # curl and others: NAME:SECRET
USERS_JOINED = ("--user=", "--proxy-user=", "--login=", "-u", "-U")
# Programs, and their kin by the begin of their name: the options after which a secret comes, and
# those that a secret is joined to. Of `docker` and others only behind the word `login`.
NEXT = {
    "sshpass": ("-p",),
    "redis-cli": ("-a",),
    "mongo": ("-p",),
    "mydumper": ("-p",),
    "myloader": ("-p",),
    "login": ("-p",),
    "ldap": ("-w",),
    "sqlcmd": ("-P",),
    "bcp": ("-P",),
    "isql": ("-P",),
    "zip": ("-P",),
    "unzip": ("-P",),
    "ipmitool": ("-P",),
    "openssl": ("-k", "-K"),
    "snmp": ("-c", "-A", "-X"),
    "ncftp": ("-p",),
    "rdesktop": ("-p",),
    "curl": ("-b",),
}
JOINED = {
    "mysql": "-p",
    "mariadb": "-p",
    "mycli": "-p",
    "sshpass": "-p",
    "mongo": "-p",
    "percona": "-p",
    "mydumper": "-p",
    "myloader": "-p",
    "automysqlbackup": "-p",
    "7z": "-p",
    "rar": "-p",
    "ldap": "-w",
    "sqlcmd": "-P",
    "bcp": "-P",
    "isql": "-P",
    "zip": "-P",
    "unzip": "-P",
    "ipmitool": "-P",
    "login": "-p",
}
PAIRS = {
    "smb": "%",
    "rpcclient": "%",
    "lftp": ",",
    "sqlplus": "/",
    "expdp": "/",
    "impdp": "/",
    "sqlldr": "/",
}
LOGINS = frozenset("docker podman nerdctl buildah skopeo helm oras crane az".split())
# Those whose kin take the same options: `mysqldump`, `mongorestore`, `ldapmodify`.
KIN = ("mysql", "mariadb", "mongo", "ldap", "snmp", "percona", "pt-", "smb", "ncftp", "7z")
TOOLS = frozenset({*NEXT, *JOINED, *PAIRS, *LOGINS, "vault", "pt-"} - {"login"})
# How well-known tokens begin, and how many characters they have at least.
TOKENS = {
    "AKIA": 20,
    "ASIA": 20,
    "ghp_": 20,
    "gho_": 20,
    "ghu_": 20,
    "ghs_": 20,
    "ghr_": 20,
    "github_pat_": 30,
    "glpat-": 15,
    "glptt-": 15,
    "xoxb-": 12,
    "xoxp-": 12,
    "xoxa-": 12,
    "xoxr-": 12,
    "xoxs-": 12,
    "xapp-": 12,
    "eyJ": 20,
    "sk-": 20,
    "sk_live_": 16,
    "sk_test_": 16,
    "rk_live_": 16,
    "AIza": 35,
    "npm_": 40,
    "pypi-Ag": 20,
    "hf_": 30,
    "dop_v1_": 30,
    "SG.": 30,
    "ya29.": 20,
    "hvs.": 20,
    "dckr_pat_": 20,
    "shpat_": 20,
    "whsec_": 20,
    "lin_api_": 20,
}
DELIMITERS = frozenset(",;&?|'\"`(){}[]<>")
COMMANDS = frozenset(";&|\n")  # behind which another program is named
WITH_USERS = ("postgresql", "postgres", "mysql", "mariadb")  # schemes whose URLs name a user
LONGEST_SCHEME = 10
LONGEST = 2000  # characters of one argument that are looked at and shown


def masked_command(arguments: Iterable[str]) -> str:
    """One line for people.

    Arguments joined; what follows the name of a secret, the user part of URLs and tokens of known
    form, masked. Rather too much than too little.

    A guess by name, not a promise: a secret given as a bare positional argument is not recognised.
    """
    shown: list[str] = []
    before, tool = "", ""
    for argument in arguments:
        if _is_secret(argument, before, tool) and not argument.startswith("--"):
            shown.append(MASK)
            before = ""
            continue
        name, colon, rest = argument.partition(":")
        pair = colon and _is_pair(name, before, rest)
        tool = _tool(argument, tool)
        hidden = f"{name}:{MASK}" if pair else _masked(argument, tool, before)
        before = argument
        shown.append(printable(masked_tokens(hidden)))
    return " ".join(shown)


def names_a_secret(name: str) -> bool:
    """Whether an option or variable of this name usually carries a secret."""
    lowered = name.lower().replace("authori", "auth").replace("author", "")
    bare = lowered.lstrip("-")
    if bare in EXACT or bare.endswith("-signature"):
        return True  # X-Amz-Signature
    if not SHORT_WORDS.isdisjoint(lowered.replace("-", "_").split("_")):
        return True  # DB_PASS, --pass, -passin: a compass and a bypass are none
    return any(word in lowered for word in SECRET_WORDS)


def _announces(word: str) -> bool:
    """Whether the next word is a secret: `--password`, `Bearer`; an AWS id comes before its key."""
    option = word.startswith("-") and "=" not in word and names_a_secret(word)
    return option or word.lower().rstrip(":").endswith("bearer") or _is_aws_id(word)


def _is_aws_id(word: str) -> bool:
    return word.startswith(("AKIA", "ASIA")) and len(word) == TOKENS["AKIA"] and word.isalnum()


def _is_secret(word: str, before: str, tool: str) -> bool:
    """Whether a word is a secret as a whole, by the one before it."""
    if _announces(before) or (before == "--key" and _is_key(word)):
        return True
    if tool == "curl":
        return before == "-b" and "=" in word  # else the name of a file
    if tool == "vault login":
        return before == "login" and word[:1] != "-" and "=" not in word
    return before in NEXT.get(tool, ())


def _is_key(word: str) -> bool:
    """Whether what `--key` is given is a key and not the path of one, or a column."""
    return len(word) >= 8 and word[0] not in "/~." and "." not in word


def _is_pair(name: str, before: str, rest: str) -> bool:
    """Whether `name:rest` after the word `before` is a user and a secret: `-u ana:x`, `-uana:x`."""
    joined = name.startswith(USERS_JOINED) and len(name) > 2
    return (before in USERS or joined) and not rest.startswith("//")


def _tool(word: str, before: str = "") -> str:
    """The program of this word, when it is one that takes a secret in a short form; else `before`.

    Its kin go by the name of the table: `mysqldump` is `mysql`.
    """
    if word == "login" and before:
        return "login" if before in LOGINS else "vault login" if before == "vault" else before
    name = word.rpartition("/")[2]
    if name in TOOLS:
        return name
    return next((tool for tool in KIN if name.startswith(tool)), before)


def _cut_at(word: str, before: str, tool: str) -> int:
    """Where in a word its secret begins, by the program before it; 0 for nowhere."""
    option = JOINED.get(tool, "")
    if option and len(word) > 2 and word.startswith(option):
        return 2
    if word[:3].lower() == "/p:" and len(word) > 3:  # xfreerdp
        return 3
    if word.startswith("--key=") and _is_key(word[6:]):
        return 6
    mark = PAIRS.get(tool, "")
    if mark and word[:1] not in "-/@" and word.find(mark) > 0 and before[-1:] != "@":
        named = mark == "/" or before in ("-U", "-u", "--user")
        return word.index(mark) + 1 if named else 0
    if mark and mark != "/" and word.startswith(("-U", "-u")) and mark in word:
        return word.index(mark) + 1
    return 0


def _masked(argument: str, tool: str = "", before: str = "") -> str:
    """One argument, which may be a URL, a header, a list of pairs or a whole script.

    From the first secret on, all of it is masked: where a secret ends, nobody can tell. `tool`: as
    in `_tool`, of a word before it; `before`: that word.
    """
    argument = argument[:LONGEST]
    if at := _cut_at(argument, before, tool):
        return argument[:at] + MASK
    start, last = 0, ""  # where the word begins that we are in; the one before it
    for index, char in enumerate(argument + " "):
        word = argument[start:index]
        space = char.isspace()
        if (space or char in DELIMITERS) and (at := _cut_at(word, last, tool)):
            return masked_urls(argument[: start + at]) + MASK
        if space and index < len(argument):
            rest = argument[index + 1 :].split(None, 1)
            if word and rest and _is_secret(rest[0].strip("'\""), word, _tool(word, tool)):
                return masked_urls(argument[: index + 1]) + MASK
        if char == "=" or (char == ":" and argument[index + 1 : index + 3] != "//"):
            if _has_value(word or last, char, argument[:start], tool) or (
                char == ":" and _is_pair(word, last, "")
            ):
                return masked_urls(argument[:index]) + argument[index] + MASK
        elif not space and char not in DELIMITERS:
            continue
        elif word:
            tool = _tool(word, tool)
        if char in COMMANDS:
            tool = ""
        start, last = index + 1, word or last
    return masked_urls(argument)


def _has_value(name: str, char: str, front: str, tool: str) -> bool:
    """Whether a secret follows `name=` or `name:`. `front`: what comes before the name."""
    if names_a_secret(name) or (tool == "pt-" and name == "p" and char == "="):
        return True
    return char == "=" and name.lower() in IN_URLS and front[-1:] in ("?", "&") and "://" in front


def masked_tokens(text: str) -> str:
    """`text` without the tokens that are known by how they begin."""
    for front, least in TOKENS.items():
        start = text.find(front)
        while start != -1:
            end = start + len(front)
            while end < len(text) and (text[end].isalnum() or text[end] in "_-."):
                end += 1
            word, begins = text[start:end], not start or not text[start - 1].isalnum()
            if begins and len(word) >= least and _is_random(front, word):
                text = f"{text[:start]}{front}{MASK}{text[end:]}"
                end = start + len(front) + len(MASK)
            start = text.find(front, end)
    return text


def _is_random(front: str, word: str) -> bool:
    """Whether it can be a token, and is no name that begins like one."""
    rest = word[len(front) :]
    if front == "eyJ":  # a JWT: three parts
        return word.count(".") >= 2
    if front == "npm_":  # npm_config_registry is none
        return rest.isalnum()
    return any(char.isdigit() for char in rest) or front.startswith("xox")


def masked_urls(text: str) -> str:
    """`text` with the user part of every URL masked, and the secrets in its query.

    A user of a database without a password stays: the URL is the one to be used. Elsewhere it may
    be a token.
    """
    start = text.find("://")
    while start != -1:
        text = _masked_query(text, start)
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


def masked_url(url: str) -> str:
    """The same of one URL that is the whole text: a space does not end its password."""
    return masked_urls(url.replace(" ", "%20"))


def _masked_query(text: str, start: int) -> str:
    """`text` with the values masked that a name announces in the query of the URL at `start`.

    A URL in quotes ends with them, any other at a space.
    """
    front = start
    while front and (text[front - 1].isalnum() or text[front - 1] in "+.-"):
        front -= 1
    quote = text[front - 1 : front] if text[front - 1 : front] in ("'", '"') else ""

    def ends(at: int) -> bool:
        char = text[at]
        return (char == quote and text[at - 1] != "\\") if quote else char.isspace()

    name, at = 0, start  # where the name of an option begins; 0: before the query
    while at < len(text) and not ends(at):
        if text[at] in "?&":
            name = at + 1
        elif name and (width := _width_behind_secret(text, name, at)):
            end = at = at + width
            while end < len(text) and text[end] not in "&#" and not ends(end):
                end += 1
            text = f"{text[:at]}{MASK}{text[end:]}"
            name, at = 0, at + len(MASK) - 1
        at += 1
    return text


def _width_behind_secret(text: str, name: int, at: int) -> int:
    """How wide the = is at `at`, be it encoded, if what stands before it names a secret; else 0."""
    if text[at] == "=":
        return int(_is_secret_in_url(text[name:at]))
    return 3 if text[at : at + 3].lower() == "%3d" and names_a_secret(text[name:at]) else 0


def _is_secret_in_url(name: str) -> bool:
    """Whether an option of a URL carries a secret; also one that is misspelled, or encoded."""
    lowered = name.lower()
    return (
        names_a_secret(name)
        or lowered in IN_URLS
        or lowered.startswith(LIKE_PASSWORD)
        or "%" in name
    )


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
