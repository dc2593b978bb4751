"""What a session lock asks PostgreSQL, and the table that remembers its tokens and holders.

Promise: the advisory lock alone excludes. The table adds a token and a name to it, in the same
round trip and under that very lock, so nobody else writes the row of its key meanwhile. Nothing is
written at a release: a row counts as long as the session it names holds the lock, by `pg_locks`.

How it could fail. An advisory lock of a session outlives the statement that took it, be that undone
or not: whatever goes wrong behind it, the session is closed. Where the table is not there and
may not be made, the lock excludes all the same, without a token.

L4  A token is above the last one of its key, above that of a lease of its name, and not behind the
server's clock in microseconds.
"""

from __future__ import annotations

from ...core.errors import InvalidArgument
from ...core.mask import printable
from ...core.value import value
from ...runtime import fork
from ..site import checked

TYPE_CHECKING = False
if TYPE_CHECKING:
    import hashlib
else:
    hashlib = fork.later("hashlib", globals())

TABLE = """
SELECT pg_advisory_xact_lock(7811887393204924516);

CREATE TABLE IF NOT EXISTS lifehold_session (
    key text COLLATE "C" PRIMARY KEY,  -- of the advisory lock: key:4711 or key:1,2
    name text COLLATE "C" NOT NULL,
    token bigint NOT NULL,
    mark text COLLATE "C" NOT NULL,
    pid integer NOT NULL,              -- of the server's process that holds the lock
    began timestamptz NOT NULL,        -- when that process began
    acquired_us bigint NOT NULL,       -- microseconds since 1970 by the server's clock
    owner text NOT NULL
) WITH (fillfactor = 50);
CREATE INDEX IF NOT EXISTS lifehold_session_name ON lifehold_session (name);

CREATE OR REPLACE FUNCTION lifehold_2_session(
    p_key text, p_first bigint, p_second integer, p_name text, p_mark text, p_owner text,
    p_wait boolean, OUT given boolean, OUT token bigint, OUT acquired_us bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    last bigint;
    now_us bigint;
BEGIN
    given := true;
    IF p_wait AND p_second IS NULL THEN
        PERFORM pg_advisory_lock(p_first);
    ELSIF p_wait THEN
        PERFORM pg_advisory_lock(p_first::integer, p_second);
    ELSIF p_second IS NULL THEN
        given := pg_try_advisory_lock(p_first);
    ELSE
        given := pg_try_advisory_lock(p_first::integer, p_second);
    END IF;
    IF NOT given THEN
        RETURN;
    END IF;
    now_us := floor(extract(epoch FROM clock_timestamp()) * 1000000);
    IF to_regclass('lifehold_lease') IS NOT NULL THEN
        SELECT l.token INTO last FROM lifehold_lease l WHERE l.name = p_name;
    END IF;
    acquired_us := now_us;
    INSERT INTO lifehold_session AS s (key, name, token, mark, pid, began, acquired_us, owner)
        SELECT p_key, p_name, least(9223372036854775806, greatest(coalesce(last, 0) + 1, now_us)),
            p_mark, a.pid, a.backend_start, now_us, p_owner
        FROM pg_stat_get_activity(pg_backend_pid()) a
        ON CONFLICT (key) DO UPDATE SET name = excluded.name,
            token = least(9223372036854775806, greatest(s.token + 1, excluded.token)),
            mark = excluded.mark, pid = excluded.pid, began = excluded.began,
            acquired_us = excluded.acquired_us, owner = excluded.owner
        RETURNING s.token INTO token;
END $$;
"""

THERE = (
    "to_regprocedure('lifehold_2_session(text,bigint,integer,text,text,text,boolean)') IS NOT NULL"
)
ASK = "SELECT given, token, acquired_us FROM lifehold_2_session(%s, %s, %s, %s, %s, %s, %s)"
# Without the table: {call} is `pg_try_advisory_lock` or `pg_advisory_lock`, which answers void.
ASK_BARE = (
    "SELECT coalesce(nullif({call}::text, ''), 'true')::boolean, NULL,"
    " floor(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
)
CLEAN = "SELECT pg_advisory_unlock_all();"

DATABASE = (
    " l.locktype = 'advisory'"
    " AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())"
)
OURS = DATABASE + " AND l.classid = {} AND l.objid = {} AND l.objsubid = {}"
# L1  Whether this very session holds it still: behind a pooler that nobody noticed it may not.
BEAT = (
    "SELECT pg_backend_pid() = {pid} AND EXISTS (SELECT FROM pg_locks l WHERE l.granted"
    " AND l.pid = pg_backend_pid() AND{ours})"
)

TABLED = "SELECT to_regclass('{name}lifehold_session') IS NOT NULL"
# Who holds, and who waits in which order (PostgreSQL 12 and 13 do not know the latter).
SEEN = """
SELECT coalesce(json_agg(json_build_array(l.key, l.pid, l.granted, a.application_name, a.usename,
        host(a.client_addr), floor(extract(epoch FROM a.backend_start) * 1000)::bigint, a.state,
        {record}) ORDER BY l.key, NOT l.granted, l.since, l.pid), '[]')::text
    FROM (SELECT l.pid, l.granted, to_jsonb(l) ->> 'waitstart' AS since,
            CASE l.objsubid WHEN 1 THEN 'key:' || ((l.classid::bigint << 32) | l.objid::bigint)
            ELSE 'key:' || l.classid::bigint::bit(32)::integer
                || ',' || l.objid::bigint::bit(32)::integer END AS key
        FROM pg_locks l WHERE{ours}) l
    LEFT JOIN pg_stat_activity a ON a.pid = l.pid {joined}
"""
JOINED = """
    LEFT JOIN {at}lifehold_session r ON r.key = l.key AND r.pid = l.pid AND l.granted
        AND coalesce(a.backend_start = r.began, true)
"""
RECORD = (
    "CASE WHEN r.key IS NOT NULL"
    " THEN json_build_array(r.mark, r.token, r.acquired_us, r.owner, r.name) END"
)
# L6  It names what was seen, each by its process, when that began, and our mark: said late,
# or said twice, it ends none that came since.
END = """
SELECT count(*) FILTER (WHERE pg_terminate_backend(l.pid))
    FROM (SELECT l.pid, l.granted, %s AS key FROM pg_locks l WHERE l.granted AND{ours}) l
    LEFT JOIN pg_stat_activity a ON a.pid = l.pid {joined} WHERE {seen}
"""
PROCESS = "l.pid = %s"
BEGAN = " AND floor(extract(epoch FROM a.backend_start) * 1000)::bigint = %s"
MARK = " AND r.mark = %s"


# ------------------------------------------------------------------------------------------------
# The key of a session lock: the integer that `pg_advisory_lock` is asked for.
#
# Promise: a name has the same key in every version, on every host, and in other tools. It is the
# first 8 bytes of the SHA-256 of the name in UTF-8, as one signed integer, the highest byte first.
# In SQL: ('x' || left(encode(sha256(convert_to('NAME', 'UTF8')), 'hex'), 16))::bit(64)::bigint A
# name of the form `key:4711` is that integer itself, and `key:1,2` the pair of `pg_advisory_lock(1,
# 2)`: so a lock that another tool takes by its number can be taken here.


PREFIX = "key:"
EXAMPLES = "'key:4711' or 4711 for pg_advisory_lock(4711), 'key:1,2' or (1, 2) for a pair"


@value
class AdvisoryKey:
    """What is locked. `name`: as it was named; `numbers`: one of 64 bits, or two of 32 bits."""

    name: str
    numbers: tuple[int, ...]

    @property
    def text(self) -> str:
        """Equal for all names of one key: `key:4711`, `key:1,2`."""
        return PREFIX + ",".join(map(str, self.numbers))

    @property
    def in_pg_locks(self) -> tuple[int, int, int]:
        """Its `classid`, `objid` and `objsubid`."""
        if len(self.numbers) == 1:
            return self.numbers[0] >> 32 & 0xFFFFFFFF, self.numbers[0] & 0xFFFFFFFF, 1
        return self.numbers[0] & 0xFFFFFFFF, self.numbers[1] & 0xFFFFFFFF, 2


def key_of(given: object) -> AdvisoryKey:
    """The key of a name, a number or a pair of numbers. Raises InvalidArgument."""
    if type(given) is int:
        return AdvisoryKey(f"{PREFIX}{given}", (ranged(given, 64),))
    if isinstance(given, tuple):
        if len(given) != 2 or any(type(each) is not int for each in given):
            raise InvalidArgument(f"{given!r} is no key of an advisory lock: {EXAMPLES}")
        pair = tuple(ranged(each, 32) for each in given)
        return AdvisoryKey(f"{PREFIX}{pair[0]},{pair[1]}", pair)
    name = checked(given)
    if name.startswith(PREFIX):
        try:
            numbers = tuple(int(each) for each in name.removeprefix(PREFIX).split(","))
        except ValueError:
            numbers = ()
        if not 1 <= len(numbers) <= 2:
            raise InvalidArgument(
                f"{printable(name[:80])!r} is no key of an advisory lock: {EXAMPLES}"
            )
        return key_of(numbers[0] if len(numbers) == 1 else numbers)
    return AdvisoryKey(name, (derived(name),))


def derived(name: str) -> int:
    """The key of a name."""
    first = hashlib.sha256(name.encode()).digest()[:8]
    return int.from_bytes(first, "big", signed=True)


def ranged(number: int, bits: int) -> int:
    """A signed integer of so many bits. Raises InvalidArgument."""
    if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        raise InvalidArgument(
            f"{number} is no key of an advisory lock: it has more than {bits} bits. {EXAMPLES}"
        )
    return number
