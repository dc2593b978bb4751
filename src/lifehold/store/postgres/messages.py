"""What is told when PostgreSQL says no, and where it is, without anything secret (L11).

Rule: an ERROR of the server undoes its transaction, so nothing has happened: `Unreachable`.
Whatever ends the connection behind the request leaves its outcome open: `NoReply` (L6), be it a
pooler that has lost the server and lives on itself.
"""

from __future__ import annotations

import os

from ...core.backend import NoReply, Unreachable
from ...core.explain import quote
from ...core.mask import MASK, names_a_secret, printable
from ...runtime import fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from urllib import parse
else:
    parse = fork.later("urllib.parse", globals())

WAIT = "wait a moment and try again"
REMEDIES = {  # SQLSTATE, or its class -> what it means here, and what to do
    "28": "the server refuses this user: look at the user, the password (PGPASSWORD, ~/.pgpass)"
    " and pg_hba.conf",
    "3D000": "there is no such database: create it (createdb), or name another one",
    "25006": "it only reads: name the primary where this is a replica, or all hosts with"
    " target_session_attrs=read-write; else look for default_transaction_read_only"
    " (ALTER DATABASE, ALTER ROLE)",
    "42501": "the role {role} may not do this: have the owner of the tables run: "
    "{theirs} --grant {role}",
    "25000": "leave the isolation level of this connection to lifehold, or to READ COMMITTED",
    "42P01": "its tables are not there, which this makes: {migrate}",
    "42883": "its functions are not there, which this makes: {migrate}",
    "3F000": "the search_path names no schema that exists: create it, or set search_path",
    "53100": "its disk is full: free some space, nothing was changed",
    "53300": "it has no connection left: raise max_connections, or put PgBouncer before it",
    "53": "it has run out of something: look at the log of the server",
    "57014": "a statement took longer than it may: look for who blocks it in pg_stat_activity",
    "57P03": f"it is starting up or shutting down: {WAIT}",
    "55P03": f"a lock of its own did not come in time: {WAIT}",
    "40": f"it undid the step because of another one: {WAIT}",
    "22P05": "the database's encoding cannot keep this name: use a database in UTF8",
    "0A000": "it does not know what was asked: PostgreSQL 12 or newer is needed",
}
NOBODY = "nothing listens there: start the server, or name the right host and port"
TRUST = "it names whose certificates to trust: set sslrootcert= to a file of theirs, or to system"
HINTS = {  # words of libpq, where there is no SQLSTATE; the first that fits
    "root certificate file": TRUST,
    "certificate file": "look at sslcert= and sslkey=, the certificate of this client",
    "password authentication failed": REMEDIES["28"],
    "no password supplied": REMEDIES["28"],
    "no pg_hba.conf entry": REMEDIES["28"],
    ' role "': REMEDIES["28"],
    "does not exist": REMEDIES["3D000"],
    "Connection refused": NOBODY,
    "No such file": NOBODY,
    "could not translate host name": "the name of the host is not known",
    "failed to resolve host": "the name of the host is not known",
    "does not support SSL": "the server speaks no TLS: turn it on there (ssl = on), or ask for less"
    " with sslmode=prefer",
    "certificate verify failed": "its certificate is signed by nobody we trust: set sslrootcert=",
    "server certificate": "its certificate does not fit: set sslrootcert=, and the host's own name",
    "session is read-only": REMEDIES["25006"],
    "timeout expired": f"it does not answer: {WAIT}",
    "connection timeout": f"it does not answer: {WAIT}",
    "starting up": REMEDIES["57P03"],
    "in recovery mode": f"it has crashed and is coming up again: {WAIT}, and look at its log",
    "too many clients": REMEDIES["53300"],
    "remaining connection slots": REMEDIES["53300"],
}


def migrate_command(known: dict[str, object], *, owner: bool = False) -> str:
    """The command that makes the tables in this very database. `owner`: by their owner, not us."""
    return f"lifehold store migrate {quote(url_of({**known, 'user': None} if owner else known))}"


def distrusted(known: dict[str, object], home: str | None, told: str, who: str) -> str:
    """What is told where others could change what would run with our rights, and the remedy."""
    names = [name for name in who.split(",") if name]
    cures = []
    if "everybody" in told:
        schema = told.partition("everybody may create in the schema ")[2].partition(",")[0]
        schema = quote(schema.partition(";")[0].strip() or home or "public")
        cures.append(f"REVOKE CREATE ON SCHEMA {schema} FROM PUBLIC")
    if names:
        named = ",".join(names)
        cures.append(
            f"if you trust {printable(', '.join(names))}, say so: connect(url, owner={named!r}), "
            f"or owner={printable(named)} behind the ? of the URL"
        )
    return (
        f"{place(known)}: {printable(told)}, and so could change what lifehold runs there with "
        f"your rights. {'; '.join(cures)}; else keep the tables in a schema of your own"
    )


def role_of(known: dict[str, object]) -> str:
    """As whom we come, as far as the URL says."""
    return printable(str(known.get("user") or os.environ.get("PGUSER") or "ROLE"))


def url_of(known: dict[str, object], owner: str = "") -> str:
    """A URL that leads to the same tables, without the password (PGPASSWORD, ~/.pgpass)."""
    host, port = str(known.get("host") or known.get("hostaddr") or ""), str(known.get("port") or "")
    more = {key: str(known[key]) for key in ("service", "options", "sslmode") if known.get(key)}
    if "options" in more:
        more["options"] = without_secrets(more["options"])
    if owner:
        more["owner"] = owner
    if host.startswith(("/", "@")):  # a socket
        more = {"host": host, **({"port": port} if port else {}), **more}
        host = port = ""
    hosts, ports = host.split(","), port.split(",") if port else []
    ports = ports * len(hosts) if len(ports) == 1 else ports
    named = [f"[{each}]" if ":" in each else each for each in hosts]
    pairs = [f"{each}:{ports[at]}" if at < len(ports) else each for at, each in enumerate(named)]
    query = f"?{parse.urlencode(more, quote_via=parse.quote)}" if more else ""
    base = parse.quote(str(known.get("dbname") or ""), safe="")
    user = parse.quote(str(known.get("user") or ""), safe="")
    who = f"{user}@" if user else ""
    return f"postgresql://{who}{printable(','.join(pairs))}/{base}{query}"


def without_secrets(options: str) -> str:
    """`-c name=value` and `--name=value` of libpq, without the values of what names a secret."""
    words: list[str] = []
    for word in options.replace("\\ ", "\0").split(" "):
        name, mark, _ = word.partition("=")
        words.append(f"{name}={MASK}" if mark and names_a_secret(name) else word)
    return " ".join(words).replace("\0", "\\ ")


def place(known: dict[str, object]) -> str:
    """Host and database in words."""
    host = known.get("host") or known.get("hostaddr") or "the local socket"
    port = known.get("port")
    base = known.get("dbname") or known.get("user") or "the user's own"
    return f"{host}{f' port {port}' if port else ''}, database {base}"


def said(error: object, known: dict[str, object]) -> str:
    """What libpq or the server said, and the remedy."""
    diag = getattr(error, "diag", None)
    primary = getattr(diag, "message_primary", None)
    lines = str(error).strip().splitlines() or [type(error).__name__]
    text = primary or " ".join(lines[0].split())
    for secret in ("password", "sslpassword"):
        if known.get(secret):
            text = text.replace(str(known[secret]), MASK)
    state = str(getattr(error, "sqlstate", None) or "")
    remedy = REMEDIES.get(state) or REMEDIES.get(state[:2])
    if remedy is None and not state:
        remedy = next((hint for words, hint in HINTS.items() if words in str(error)), "")
    if remedy and "{" in remedy:
        remedy = remedy.format(
            migrate=migrate_command(known),
            theirs=migrate_command(known, owner=True),
            role=quote(role_of(known)),
        )
    return f"{place(known)}: {printable(text)}{f': {remedy}' if remedy else ''}"


def refused(error: object, known: dict[str, object]) -> Unreachable | NoReply:
    """The answer to a request that failed after it was sent."""
    diag = getattr(error, "diag", None)
    severity = getattr(diag, "severity_nonlocalized", None) or getattr(diag, "severity", None)
    text = said(error, known)
    lost = str(getattr(error, "sqlstate", None) or "").startswith("08")  # a pooler's of its server
    return Unreachable(text) if severity == "ERROR" and not lost else NoReply(text)
