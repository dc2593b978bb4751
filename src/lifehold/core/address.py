"""The URL of a store as people write it: what only looks like one, and what of it may be shown.

L11  A password is shown in no text. One that was not percent-encoded cuts its URL in pieces, which
     then stand for host, port, database or name, and would be told as such: so it is refused first.
"""

from __future__ import annotations

from .errors import InvalidArgument
from .mask import MASK, masked_urls, names_a_secret, printable

SCHEMES = frozenset(
    "memory sqlite postgresql postgres redis rediss unix redis+sentinel redis+cluster "
    "redis+quorum etcd zookeeper dynamodb mysql mariadb file".split()
)
NO_HOST = frozenset({"memory", "sqlite", "file"})  # behind it stands a name or path, not a user
ENCODED = "/ is %2F, # is %23, @ is %40, ? is %3F, : is %3A"


def refuse_lost_slash(path: str) -> None:
    """Raises InvalidArgument for what was a URL before its two slashes became one.

    `pathlib.Path` and `os.path.normpath` do that. It would be a lock in a file of this host, and
    each host would have its own.
    """
    if ":" not in path or "://" in path:
        return
    parts = path.split("/")
    heads = [part[:-1] for part in parts[:-1] if part.endswith(":")]  # also of an absolute path
    heads.append(parts[0].partition(":")[0] if ":" in parts[0] else "")
    scheme = next((head for head in heads if head.lower() in SCHEMES), None)
    if scheme is None:
        return
    raise InvalidArgument(
        f"{shown_torn(path)!r} looks like a URL that has lost a slash, as pathlib.Path and "
        f"os.path.normpath take one away: a store is named by a str that begins with {scheme}://. "
        "A lock in a file needs another name"
    )


def refuse_torn(url: str) -> None:
    """Raises InvalidArgument for a URL whose password was not percent-encoded."""
    front, mark, rest = url.partition("://")
    if not mark or front in NO_HOST:
        return
    end = next((at for at, char in enumerate(rest) if char in "/?#"), len(rest))
    where, behind = rest[:end], rest[end:]
    host = where.rpartition("@")[2]
    port = "" if host.endswith("]") else host.rpartition(":")[2] if ":" in host else ""
    path = behind.partition("?")[0].partition("#")[0]
    torn = (
        where.count("@") > 1
        or (where and "@" not in where and "@" in path)
        or ("@" not in where and "@" in behind and not _ports(where))
        or ("@" in behind.partition("#")[0] and bool(port) and not port.isdigit())
    )
    if torn:
        raise InvalidArgument(
            f"'{printable(front)}://{MASK}' is torn: what stands before the last @ has a "
            f"character that ends it. In a user or password {ENCODED}"
        )


def _ports(where: str) -> bool:
    """Whether each host of a list has a number for its port, or none."""
    for host in where.split(","):
        name, colon, port = host.rpartition(":")
        if colon and not host.endswith("]") and port and not port.isdigit():
            return False
        if colon and not name.startswith("[") and ":" in name:
            return False
    return True


def without_password(url: str) -> str:
    """The URL of a store, as it may be told and used: its password comes from elsewhere then."""
    scheme, mark, rest = url.partition("://")
    if scheme in NO_HOST:
        return url
    where, hashed, name = rest.partition("#")
    front, asked, query = where.partition("?")
    host, slash, path = front.partition("/")
    if "@" not in host and ("@" in path or ("@" in rest and not _ports(host))):
        return f"{scheme}://{MASK}@{rest.rpartition('@')[2]}"
    who, at, host = host.rpartition("@")
    who = who.partition(":")[0].partition("@")[0]
    pairs = [each for each in query.split("&") if not names_a_secret(each.partition("=")[0])]
    options = f"?{'&'.join(pairs)}" if asked and any(pairs) else ""
    return f"{scheme}{mark}{who}{at if who else ''}{host}{slash}{path}{options}{hashed}{name}"


def shown_torn(text: str) -> str:
    """What is no URL, for a message: a password in it masked, be it `a:b@c` or `password=b`."""
    words: list[str] = []
    for word in text.split(" "):
        name, mark, _ = word.partition("=")
        before, at, behind = word.rpartition("@")
        if mark and names_a_secret(name):
            return printable(
                masked_urls(" ".join([*words, f"{name}={MASK}"]))
            )  # it may have spaces
        elif at and ":" in before:
            words.append(f"{before.partition(':')[0]}:{MASK}@{behind}")
        else:
            words.append(word)
    return printable(masked_urls(" ".join(words)))
