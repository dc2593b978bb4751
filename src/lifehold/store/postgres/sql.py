"""The functions of a store in PostgreSQL: each question of a backend is one call of one of them.

Promise: one round trip and one transaction. It locks the row of its name, and sees what all before
have done. That needs READ COMMITTED, where each statement inside looks anew; any other level
of isolation is refused, since two could come in. The rules are those of
store/rules.py, line by line.

Who comes to a name that is not `busy` takes it by two updates, and leaves it by one. All others set
`busy` first, under the row of the name, and a release that finds nobody left takes it back.

How it could fail, and what keeps it. Who leaves in haste meets one who gets in line: both write the
row of slot 0, so either the latter sees it free, or the former finds it busy, and calls. A guard
that holds the row of the name for its transaction delays no renewal and no release, only who would
take over. A renewal does not lock the row of the name, so that a
thousand go in one statement: whoever removes a holder names in the same statement the condition
for it, which PostgreSQL looks at again behind the renewal. A waiter is noted and called under the
row of its name, so no call falls between.

L2  Whose lease is over is decided by `clock_timestamp()` of the server, read behind the row lock.
    Where that clock was set back, the first who asks writes the end anew: a lease then lasts its
    ttl from there on, and no longer.
L4  The row of a name stays, with its token, which is not behind that clock in microseconds.
"""

from __future__ import annotations

from .session_sql import TABLE as SESSIONS

# ------------------------------------------------------------------------------------------------
# The line of those who wait, in SQL: who is let in next, and how it is told.
#
# Promise: who is first is let in by the very step that makes room, where that is safe: it has asked
# a moment ago, and the connection on which it listens is open. Else it is called, and asks. One is
# let in and one is called per step, so there is no herd.
#
# How it could fail, and what keeps it. Who is let in may be dead: then its lease costs the others
# one ttl, as if it had died a moment later; so nobody is let in who has not asked lately, and who
# has no connection any more is passed. It may have gone: then it gives the lease back as soon as it
# hears of it (notify.py). Its connection may break before it hears: it looks for itself, and finds
# its grant by its mark (L6). It may hear late: its deadline counts from its own last request, which
# was before (L8). The call goes out behind the commit, and that behind the flush.
#
# A listener holds an advisory lock of a random key: who can take it sees that nobody listens. That
# costs a hundredth of a look into pg_stat_activity, and a key is not given again as a pid is.


LINE = """
DROP FUNCTION IF EXISTS lifehold_1_call(text, integer, double precision);

-- Whether it could be told by its listener, and that one is gone.
CREATE OR REPLACE FUNCTION lifehold_3_absent(w lifehold_waiter)
RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT w.word IS NOT NULL AND pg_try_advisory_xact_lock_shared(w.listener)
$$;

CREATE OR REPLACE FUNCTION lifehold_3_sit(
    p_name text, p_mark text, p_last bigint, p_capacity integer, p_weight integer,
    p_shared boolean, p_ttl double precision, p_delay double precision, p_owner text,
    p_held bigint, p_nr bigint, p_busy boolean, p_now double precision,
    OUT token bigint, OUT slot integer, OUT acquired_at double precision
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    slot := 0;
    IF p_held > 0 THEN
        SELECT min(s.nr) INTO slot FROM generate_series(0, p_held) s (nr)
            WHERE s.nr NOT IN (SELECT h.slot FROM lifehold_holder h
                WHERE h.name = p_name AND h.mark IS NOT NULL);
    END IF;
    acquired_at := floor(p_now * 1e6) / 1e6;
    UPDATE lifehold_lease l
        SET token = CASE WHEN p_shared THEN l.token ELSE lifehold_1_token(l.token, p_now) END,
            capacity = p_capacity
        WHERE l.name = p_name AND NOT (p_shared AND l.capacity = p_capacity)
        RETURNING l.token INTO token;
    IF NOT FOUND THEN
        token := p_last;
    END IF;
    UPDATE lifehold_holder h SET mark = p_mark, nr = p_nr,
            token = lifehold_3_sit.token, weight = p_weight, shared = p_shared,
            ttl = p_ttl, delay = p_delay, ends_at = p_now + p_ttl,
            acquired_at = lifehold_3_sit.acquired_at, renewals = 0, owner = '', busy = p_busy,
            owner_key = hashtextextended(p_owner, 0)
        WHERE h.name = p_name AND h.slot = lifehold_3_sit.slot;
    IF NOT FOUND THEN
        INSERT INTO lifehold_holder (name, mark, nr, token, weight, slot, shared, ttl, delay,
                ends_at, acquired_at, owner, busy, owner_key)
            VALUES (p_name, p_mark, p_nr, token, p_weight, slot, p_shared, p_ttl,
                p_delay, p_now + p_ttl, acquired_at, '', p_busy, hashtextextended(p_owner, 0));
    END IF;
    PERFORM lifehold_4_write(p_name, slot, p_owner);
END $$;

-- Let in or wake the first that lives, if there is room for it. Whether anybody was let in.
CREATE OR REPLACE FUNCTION lifehold_3_call(
    p_name text, p_capacity integer, p_last bigint, p_now double precision
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    w lifehold_waiter;
    g record;
    held bigint;
    used bigint;
    top bigint;
    handed boolean := false;
BEGIN
    FOR w IN SELECT o.* FROM lifehold_waiter o
        WHERE o.name = p_name AND o.dies_at > p_now
        AND (o.called_at IS NULL OR o.called_at + 1.0 > p_now) ORDER BY o.place
    LOOP
        CONTINUE WHEN lifehold_3_absent(w);
        EXIT WHEN w.called_at IS NOT NULL;
        SELECT count(*), coalesce(sum(CASE WHEN h.weight < 1 THEN p_capacity ELSE h.weight END), 0),
            coalesce(max(h.nr), 0) INTO held, used, top
            FROM lifehold_holder h WHERE h.name = p_name AND h.mark IS NOT NULL;
        EXIT WHEN held > 0 AND w.weight > p_capacity - used;
        IF handed OR w.word IS NULL OR (held > 0 AND w.capacity <> p_capacity)
            OR p_now - w.asked_at > least(6.0, w.ttl / 4)
        THEN
            UPDATE lifehold_waiter o SET called_at = p_now
                WHERE o.name = p_name AND o.mark = w.mark;
            IF w.bell <> '' THEN
                PERFORM pg_notify(w.bell, w.mark);
            END IF;
            EXIT;
        END IF;
        DELETE FROM lifehold_waiter o WHERE o.name = p_name AND o.mark = w.mark;
        SELECT * INTO g FROM lifehold_3_sit(p_name, w.mark, p_last, w.capacity, w.weight, w.shared,
            w.ttl, w.delay, w.owner, held, top + 1, true, p_now);
        PERFORM pg_notify(w.bell, concat_ws(' ', w.mark, w.word, coalesce(g.token::text, '-'),
            g.slot, g.acquired_at, p_now));
        handed := true;
        p_capacity := w.capacity;
        EXIT WHEN used + w.weight >= p_capacity;
    END LOOP;
    RETURN handed;
END $$;

-- Who may call what calls these may call these, also where nobody has given it a right to them.
DO $$
DECLARE
    g record;
BEGIN
    FOR g IN SELECT a.grantee::regrole AS who FROM pg_proc p, aclexplode(p.proacl) a
        WHERE p.oid = to_regprocedure('lifehold_1_release(text, text)')
        AND a.grantee <> 0 AND a.grantee <> p.proowner
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION lifehold_3_absent(lifehold_waiter), '
            'lifehold_3_sit(text, text, bigint, integer, integer, boolean, double precision, '
            'double precision, text, bigint, bigint, boolean, double precision), '
            'lifehold_3_call(text, integer, bigint, double precision) TO %s', g.who);
    END LOOP;
END $$;
"""


# ------------------------------------------------------------------------------------------------
# The tables of a store in PostgreSQL, schema version 4, and the small functions on them.
#
# Promise: of a name a row stays, with its token, when its holders go (L4). Tables only grow from
# version to version. A function carries in its name the version that first had it, and is made anew
# by each later one, so a client of an older version works on the new rows by its old calls (L12).
# Version 2 knows by `busy` that nobody has to be looked for. Version 3 knows of who waits all that
# it takes to let it in. Version 4 keeps the record of a holder in a row of its own, which is
# written only when another holder comes: what each grant writes stays narrow, also while an old
# snapshot keeps all that was written. Its functions find their tables in their own schema alone.


VERSION = 4

# Who may have made what we call: the caller's own role, a superuser, or whom `{owner}` names. What
# anybody else owns, or could put in its place, would be run with the caller's rights (L13).
STRANGERS = """
WITH trusted AS (
    SELECT r.oid FROM pg_catalog.pg_roles r WHERE r.rolsuper OR r.rolname = current_user
        OR r.rolname = ANY (string_to_array({owner}, ','))
), home AS (
    SELECT n.* FROM pg_catalog.pg_namespace n WHERE n.nspname = {home}
), theirs AS (
    SELECT h.nspowner AS role, 'owns the schema ' || h.nspname AS what FROM home h
    UNION ALL SELECT a.grantee, 'may create in the schema ' || h.nspname FROM home h,
        pg_catalog.aclexplode(coalesce(h.nspacl, pg_catalog.acldefault('n', h.nspowner))) a
        WHERE a.privilege_type = 'CREATE'
    UNION ALL SELECT c.relowner, 'owns the table ' || c.relname
        FROM pg_catalog.pg_class c JOIN home h ON h.oid = c.relnamespace
        WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND c.relname ~ '{tables}'
    UNION ALL SELECT p.proowner, 'owns the function ' || p.proname
        FROM pg_catalog.pg_proc p JOIN home h ON h.oid = p.pronamespace
        WHERE p.proname ~ '^lifehold_(now$|[0-9]+_)'
    UNION ALL SELECT p.proowner, 'owns the trigger ' || t.tgname
        FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid
        JOIN home h ON h.oid = c.relnamespace JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
        WHERE NOT t.tgisinternal AND c.relname ~ '{tables}'
), named AS (
    SELECT t.what, CASE WHEN r.rolname = 'pg_database_owner' THEN (SELECT d.datdba
        FROM pg_catalog.pg_database d WHERE d.datname = current_database()) ELSE t.role END AS role
    FROM theirs t LEFT JOIN pg_catalog.pg_roles r ON r.oid = t.role
)
SELECT string_agg(s.told, '; ' ORDER BY s.told) AS told, string_agg(DISTINCT s.who, ',') AS who
    FROM (SELECT coalesce(r.rolname::text, 'everybody') || ' ' || min(n.what)
            || CASE count(*) WHEN 1 THEN '' ELSE ', and ' || count(*) - 1 || ' more' END AS told,
            coalesce(r.rolname::text, '') AS who
        FROM named n LEFT JOIN pg_catalog.pg_roles r ON r.oid = n.role
        WHERE n.role NOT IN (SELECT t.oid FROM trusted t) GROUP BY r.rolname) s
"""
OURS = "^lifehold_(schema|lease|holder|owner|waiter|audit|kept|session)$"


def strangers(home: str, owner: str) -> str:
    """Who else could change what is called, told, and their roles. Both given as SQL."""
    return STRANGERS.format(home=home, owner=owner, tables=OURS)


TRUST = """
DO $$
DECLARE
    found text;
BEGIN
    SELECT s.told INTO found FROM (
        {strangers}
    ) s;
    IF found IS NOT NULL THEN
        RAISE EXCEPTION 'others could change what is run here: %', found
            USING ERRCODE = '42501', HINT = 'lifehold.owner';
    END IF;
END $$;
""".replace(
    "{strangers}",
    strangers("current_schema()", "coalesce(current_setting('lifehold.owner', true), '')"),
)

TABLES = """
SELECT pg_advisory_xact_lock(7811887393204924516);

CREATE TABLE IF NOT EXISTS lifehold_schema (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    version integer NOT NULL,  -- of the newest functions that are here
    least integer NOT NULL     -- of the oldest ones that are right beside them
);
DO $$ BEGIN
    IF (SELECT version FROM lifehold_schema) > 4 THEN
        RAISE EXCEPTION 'the tables of lifehold are of version %: bring them up by that version',
            (SELECT version FROM lifehold_schema);
    END IF;
END $$;
CREATE TABLE IF NOT EXISTS lifehold_lease (
    name text COLLATE "C" PRIMARY KEY,
    token bigint,
    capacity integer NOT NULL DEFAULT 1
) WITH (fillfactor = 50);
-- Behind every step that has begun, also one that waits for its row: it goes on by the old rules.
LOCK TABLE lifehold_lease IN EXCLUSIVE MODE;
CREATE TABLE IF NOT EXISTS lifehold_holder (
    name text COLLATE "C" NOT NULL,
    slot integer NOT NULL,
    mark text COLLATE "C",  -- null: nobody sits here; the row of slot 0 is used again and again
    nr bigint NOT NULL,     -- in order of arrival
    token bigint,
    weight integer NOT NULL,
    shared boolean NOT NULL,
    ttl double precision NOT NULL,
    delay double precision NOT NULL,
    ends_at double precision NOT NULL,  -- seconds since 1970 by the server's clock
    acquired_at double precision NOT NULL,
    renewals integer NOT NULL DEFAULT 0,
    owner text NOT NULL,
    PRIMARY KEY (name, slot)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
-- Before the line is locked: that is the order in which each step locks its tables.
ALTER TABLE lifehold_holder  -- of slot 0: others may be in, or in line
    ADD COLUMN IF NOT EXISTS busy boolean NOT NULL DEFAULT true,
    ADD COLUMN IF NOT EXISTS owner_key bigint;  -- of the record in lifehold_owner; then owner is ''
CREATE TABLE IF NOT EXISTS lifehold_owner (
    name text COLLATE "C" NOT NULL,
    slot integer NOT NULL,
    owner text NOT NULL,
    PRIMARY KEY (name, slot)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE TABLE IF NOT EXISTS lifehold_waiter (
    name text COLLATE "C" NOT NULL,
    mark text COLLATE "C" NOT NULL,
    place bigint GENERATED ALWAYS AS IDENTITY,
    weight integer NOT NULL,
    dies_at double precision NOT NULL,
    bell text NOT NULL,
    called_at double precision,
    PRIMARY KEY (name, mark)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
ALTER TABLE lifehold_waiter
    ADD COLUMN IF NOT EXISTS word text,  -- null: it is called, and asks
    ADD COLUMN IF NOT EXISTS listener bigint,  -- an advisory lock that it has while it listens
    ADD COLUMN IF NOT EXISTS asked_at double precision,
    ADD COLUMN IF NOT EXISTS capacity integer,
    ADD COLUMN IF NOT EXISTS shared boolean,
    ADD COLUMN IF NOT EXISTS ttl double precision,
    ADD COLUMN IF NOT EXISTS delay double precision,
    ADD COLUMN IF NOT EXISTS owner text;
CREATE INDEX IF NOT EXISTS lifehold_waiter_line ON lifehold_waiter (name, place);
CREATE TABLE IF NOT EXISTS lifehold_audit (
    nr bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    verb text NOT NULL,
    name text COLLATE "C" NOT NULL,
    reason text NOT NULL,
    by text NOT NULL,
    token bigint,
    before text NOT NULL
);
CREATE TABLE IF NOT EXISTS lifehold_kept (
    name text COLLATE "C" PRIMARY KEY,
    token bigint NOT NULL,  -- of the holder who left it
    text text NOT NULL
);
INSERT INTO lifehold_schema AS there (version, least) VALUES (4, 1)
    ON CONFLICT (one) DO UPDATE SET version = greatest(there.version, 4);
"""

# Behind every name by its bytes, in whatever encoding the database has. Not by `starts_with`: this
# ends the walk through the index.
LAST = """repeat(convert_from(CASE
        WHEN getdatabaseencoding() = 'UTF8' THEN decode('f48fbfbf', 'hex')
        WHEN left(getdatabaseencoding()::text, 3) = 'EUC' THEN decode('fefe', 'hex')
        ELSE decode('ff', 'hex') END, getdatabaseencoding()), 200)"""

SMALL = """
CREATE OR REPLACE FUNCTION lifehold_now() RETURNS double precision LANGUAGE sql VOLATILE AS $$
    SELECT extract(epoch FROM pg_catalog.clock_timestamp())::double precision
$$;

CREATE OR REPLACE FUNCTION lifehold_1_token(last bigint, now double precision)
RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT least(9223372036854775806, greatest(coalesce(last, 0) + 1, floor(now * 1e6)::bigint))
$$;

CREATE OR REPLACE FUNCTION lifehold_1_seat(h lifehold_holder, now double precision)
RETURNS json LANGUAGE sql STABLE AS $$
    SELECT json_build_array(h.mark, h.token, h.weight, h.slot, h.ttl, h.ends_at + h.delay - now,
        h.acquired_at, h.renewals, CASE WHEN h.owner <> '' THEN h.owner ELSE (SELECT o.owner
            FROM lifehold_owner o WHERE o.name = h.name AND o.slot = h.slot) END, h.delay)
$$;

CREATE OR REPLACE FUNCTION lifehold_1_state(l lifehold_lease, now double precision)
RETURNS json LANGUAGE sql STABLE AS $$
    SELECT json_build_array(l.name, l.token, l.capacity,
        (SELECT json_agg(lifehold_1_seat(h, now) ORDER BY h.nr) FROM lifehold_holder h
            WHERE h.name = l.name AND h.mark IS NOT NULL AND h.ends_at + h.delay > now),
        (SELECT json_agg(w.mark ORDER BY w.place) FROM lifehold_waiter w
            WHERE w.name = l.name AND w.dies_at > now
            AND (w.called_at IS NULL OR w.called_at + 1.0 > now)))
$$;

-- The same of the next names, without a call for each of them.
CREATE OR REPLACE FUNCTION lifehold_4_page(p_prefix text, p_after text, p_most integer)
RETURNS SETOF json LANGUAGE sql VOLATILE AS $$
    WITH t AS MATERIALIZED (SELECT lifehold_now() AS now), n AS MATERIALIZED (
        SELECT l.* FROM lifehold_lease l WHERE l.name > p_after AND l.name >= p_prefix
            AND l.name < p_prefix || {last} ORDER BY l.name LIMIT p_most)
    SELECT json_build_array(n.name, n.token, n.capacity,
        (SELECT json_agg(json_build_array(h.mark, h.token, h.weight, h.slot, h.ttl,
                h.ends_at + h.delay - t.now, h.acquired_at, h.renewals,
                CASE WHEN h.owner <> '' THEN h.owner ELSE (SELECT o.owner FROM lifehold_owner o
                    WHERE o.name = h.name AND o.slot = h.slot) END, h.delay) ORDER BY h.nr)
            FROM lifehold_holder h
            WHERE h.name = n.name AND h.mark IS NOT NULL AND h.ends_at + h.delay > t.now),
        (SELECT json_agg(w.mark ORDER BY w.place) FROM lifehold_waiter w
            WHERE w.name = n.name AND w.dies_at > t.now
            AND (w.called_at IS NULL OR w.called_at + 1.0 > t.now)))
        FROM n, t ORDER BY n.name
$$;
""".replace("{last}", LAST)

# At the end of a migration: each function finds what it names in its own schema, whoever calls it.
PINNED = """
DO $$
DECLARE
    each regprocedure;
BEGIN
    FOR each IN SELECT p.oid::regprocedure FROM pg_catalog.pg_proc p
        JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
        WHERE n.nspname = current_schema() AND p.proname ~ '^lifehold_[124]_'
        AND p.proname NOT IN ('lifehold_1_token', 'lifehold_1_seat')  -- called by the others alone
    LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = %I, pg_temp', each, current_schema());
    END LOOP;
END $$;

-- Who may call what was here before may call these too, and use the table that came with them.
DO $$
DECLARE
    g record;
BEGIN
    FOR g IN SELECT a.grantee::regrole AS who FROM pg_proc p, aclexplode(p.proacl) a
        WHERE p.oid = to_regprocedure('lifehold_1_release(text, text)')
        AND a.grantee <> 0 AND a.grantee <> p.proowner
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION lifehold_4_write(text, integer, text), '
            'lifehold_4_prune(text, double precision, integer), '
            'lifehold_4_page(text, text, integer) TO %s', g.who);
    END LOOP;
    FOR g IN SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END
            AS who FROM pg_class c, aclexplode(c.relacl) a
        WHERE c.oid = to_regclass('lifehold_holder') AND a.grantee <> c.relowner
        AND a.privilege_type = 'UPDATE'
    LOOP
        EXECUTE format('GRANT SELECT, INSERT, UPDATE ON lifehold_owner TO %s', g.who);
    END LOOP;
END $$;
"""


# ------------------------------------------------------------------------------------------------


# L1  Each statement of a step has to see what others have committed before it.
ALONE = """
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'leases need READ COMMITTED, and this transaction is %',
            upper(current_setting('transaction_isolation')) USING ERRCODE = '25000';
    END IF;
"""

ACQUIRE = """
-- The record of who sits in a slot, where another one stands there.
CREATE OR REPLACE FUNCTION lifehold_4_write(p_name text, p_slot integer, p_owner text)
RETURNS void LANGUAGE sql VOLATILE AS $$
    INSERT INTO lifehold_owner AS o (name, slot, owner) VALUES (p_name, p_slot, p_owner)
        ON CONFLICT (name, slot) DO UPDATE SET owner = excluded.owner
        WHERE o.owner <> excluded.owner
$$;

CREATE OR REPLACE FUNCTION lifehold_1_acquire(
    p_name text, p_mark text, p_ttl double precision, p_delay double precision, p_owner text,
    p_capacity integer, p_weight integer, p_shared boolean, p_wait boolean, p_fair boolean,
    p_patience double precision, p_bell text, p_gone text,
    OUT given boolean, OUT token bigint, OUT slot integer, OUT acquired_at double precision,
    OUT now double precision, OUT over json, OUT seats json, OUT ahead bigint,
    OUT look_in double precision, OUT capacity integer
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    lease lifehold_lease;
    before bigint;
    held bigint;
    used bigint;
    arrived bigint;
    some_over boolean;
    mine boolean;
    line boolean;
    spot bigint;
    way text[];
    handed boolean := false;
    set_back boolean;
    before_us bigint := 0;
    key bigint := hashtextextended(p_owner, 0);
    written bigint;
BEGIN{alone}
    given := true;
    slot := 0;
    now := lifehold_now();
    UPDATE lifehold_lease l
        SET token = CASE WHEN p_shared THEN l.token ELSE lifehold_1_token(l.token, now) END
        FROM lifehold_holder h WHERE l.name = p_name AND h.name = p_name AND h.slot = 0
            AND h.mark IS NULL AND NOT h.busy AND h.token IS NOT DISTINCT FROM l.token
            AND l.capacity = p_capacity
        RETURNING l.token, h.token, h.owner_key INTO token, before, written;
    IF FOUND THEN
        UPDATE lifehold_holder h SET mark = p_mark, nr = 1, token = lifehold_1_acquire.token,
                weight = p_weight, shared = p_shared, ttl = p_ttl, delay = p_delay,
                ends_at = now + p_ttl, acquired_at = floor(now * 1e6) / 1e6, renewals = 0,
                owner = '', owner_key = key
            WHERE h.name = p_name AND h.slot = 0 AND h.mark IS NULL AND NOT h.busy
            RETURNING h.acquired_at INTO acquired_at;
        IF FOUND THEN
            IF written IS DISTINCT FROM key THEN
                PERFORM lifehold_4_write(p_name, 0, p_owner);
            END IF;
            RETURN;
        END IF;
        UPDATE lifehold_lease l SET token = before WHERE l.name = p_name;  -- nothing was granted
        token := NULL;
    END IF;
    LOOP
        SELECT l.* INTO lease FROM lifehold_lease l WHERE l.name = p_name FOR NO KEY UPDATE;
        EXIT WHEN FOUND;  -- it may be forgotten again in between (prune.py)
        INSERT INTO lifehold_lease (name) VALUES (p_name) ON CONFLICT DO NOTHING;
    END LOOP;
    UPDATE lifehold_holder h SET busy = true WHERE h.name = p_name AND h.slot = 0 AND NOT h.busy;
    now := lifehold_now();
    FOR looks IN 1..2 LOOP
        -- L1  What no step has written fills the lock: so nobody comes in beside it.
        SELECT count(*), coalesce(sum(CASE WHEN h.weight < 1 THEN p_capacity ELSE h.weight END), 0),
            coalesce(max(h.nr), 0), coalesce(bool_or(h.mark = p_mark), false),
            coalesce(bool_or(h.mark <> p_mark AND (h.ends_at + h.delay <= now
                OR h.mark || ':' || h.renewals = p_gone)), false),
            coalesce(bool_or(h.ends_at > now + h.ttl), false),
            EXISTS (SELECT 1 FROM lifehold_waiter w WHERE w.name = p_name)
            INTO held, used, arrived, mine, some_over, set_back, line
            FROM lifehold_holder h WHERE h.name = p_name AND h.mark IS NOT NULL;
        EXIT WHEN NOT some_over OR looks = 2;
        WITH ended AS (
            DELETE FROM lifehold_holder h WHERE h.name = p_name AND h.mark <> p_mark
                AND (h.ends_at + h.delay <= now OR h.mark || ':' || h.renewals = p_gone)
                RETURNING h.*
        ) SELECT lifehold_1_seat(e, now) INTO over FROM ended e ORDER BY e.nr DESC LIMIT 1;
    END LOOP;
    IF set_back THEN  -- L2  By a clock read now: a renewal may have come behind ours.
        UPDATE lifehold_holder h SET ends_at = lifehold_now() + h.ttl
            WHERE h.name = p_name AND h.mark IS NOT NULL AND h.ends_at > lifehold_now() + h.ttl;
    END IF;
    IF line THEN
        -- The dead behind us are left to those behind us, so a long line costs the first nothing.
        SELECT w.place INTO spot FROM lifehold_waiter w WHERE w.name = p_name AND w.mark = p_mark;
        spot := coalesce(spot, 9223372036854775807);
        DELETE FROM lifehold_waiter w WHERE w.name = p_name AND w.place < spot
            AND (w.dies_at <= now OR w.called_at + 1.0 <= now);
        SELECT count(*), coalesce(bool_or(
                w.dies_at > now + p_patience OR w.called_at > now OR w.asked_at > now), false)
            INTO before_us, set_back
            FROM lifehold_waiter w WHERE w.name = p_name AND w.place < spot;
        IF set_back THEN
            UPDATE lifehold_waiter w SET dies_at = least(w.dies_at, now + p_patience),
                    called_at = CASE WHEN w.called_at > now THEN now ELSE w.called_at END,
                    word = CASE WHEN w.asked_at > now THEN NULL ELSE w.word END,
                    asked_at = least(w.asked_at, now)
                WHERE w.name = p_name AND w.place < spot;
        END IF;
    END IF;
    IF mine THEN  -- L6  an answer was lost: the same grant, from now on
        UPDATE lifehold_holder h SET ends_at = now + h.ttl, renewals = h.renewals + 1
            WHERE h.name = p_name AND h.mark = p_mark
            RETURNING h.token, h.slot, h.acquired_at INTO token, slot, acquired_at;
        over := NULL;
        RETURN;
    END IF;
    ahead := 0;
    IF held > 0 AND lease.capacity <> p_capacity THEN
        given := false;
        capacity := lease.capacity;
    ELSE
        ahead := before_us;
        given := p_weight <= p_capacity - used;
        IF given AND p_fair AND ahead > 0 THEN
            given := NOT EXISTS (SELECT 1 FROM lifehold_waiter w WHERE w.name = p_name
                AND w.place < spot AND NOT lifehold_3_absent(w));
        END IF;
    END IF;
    IF given THEN
        SELECT s.* INTO token, slot, acquired_at FROM lifehold_3_sit(p_name, p_mark, lease.token,
            p_capacity, p_weight, p_shared, p_ttl, p_delay, p_owner, held, arrived + 1,
            held > 0 OR line, now) s;
        IF line THEN
            DELETE FROM lifehold_waiter w WHERE w.name = p_name AND w.mark = p_mark;
            PERFORM lifehold_3_call(p_name, p_capacity, token, now);
        END IF;
        RETURN;
    END IF;
    IF held = 0 AND lease.capacity <> p_capacity THEN
        UPDATE lifehold_lease l SET capacity = p_capacity WHERE l.name = p_name;
    END IF;
    IF ahead > 0 AND p_weight <= p_capacity - used THEN
        -- There is room: who is first comes now, or is dead and is passed.
        handed := lifehold_3_call(p_name, p_capacity, lease.token, now);
    END IF;
    IF NOT handed THEN  -- It may be lost in a crash: whoever waits asks again.
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    IF p_wait AND capacity IS NULL THEN
        way := string_to_array(p_bell, ' ');
        INSERT INTO lifehold_waiter AS w (name, mark, weight, dies_at, bell, word, listener,
                asked_at, capacity, shared, ttl, delay, owner)
            VALUES (p_name, p_mark, p_weight, now + p_patience, coalesce(way[1], ''),
                CASE WHEN p_fair THEN way[3] END, way[2]::bigint, now, p_capacity, p_shared, p_ttl,
                p_delay, p_owner)
            ON CONFLICT (name, mark) DO UPDATE SET dies_at = excluded.dies_at,
                bell = excluded.bell, called_at = NULL, listener = excluded.listener,
                word = CASE WHEN w.weight = excluded.weight THEN excluded.word END,
                asked_at = excluded.asked_at, capacity = excluded.capacity,
                shared = excluded.shared, ttl = excluded.ttl, delay = excluded.delay,
                owner = excluded.owner;
    END IF;
    SELECT json_agg(lifehold_1_seat(h, now)) INTO seats FROM (
        SELECT h.* FROM lifehold_holder h WHERE h.name = p_name AND h.mark IS NOT NULL
        ORDER BY h.nr LIMIT 8) h;
    IF ahead = 0 THEN
        SELECT min(h.ends_at + h.delay - now) INTO look_in FROM lifehold_holder h
            WHERE h.name = p_name AND h.mark IS NOT NULL;
    ELSIF ahead = 1 THEN  -- when the first, being called, has not come
        SELECT w.called_at + 1.0 - now INTO look_in FROM lifehold_waiter w
            WHERE w.name = p_name AND w.place < spot AND w.mark <> p_mark;
    END IF;
END $$;
"""

REST = """
CREATE OR REPLACE FUNCTION lifehold_1_release(p_name text, p_mark text)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    size integer;
    last bigint;
    was_in boolean;
BEGIN{alone}
    -- Who is being changed is not waited for here: rows are locked in one order, the name's first.
    UPDATE lifehold_holder h SET mark = NULL WHERE (h.name, h.slot) = (
        SELECT o.name, o.slot FROM lifehold_holder o WHERE o.name = p_name AND o.slot = 0
            AND o.mark = p_mark AND NOT o.busy FOR NO KEY UPDATE SKIP LOCKED);  -- L5
    IF FOUND THEN
        -- It may be lost in a crash of the server: then the lease runs out by itself.
        PERFORM set_config('synchronous_commit', 'off', true);
        RETURN true;
    END IF;
    SELECT l.capacity, l.token INTO size, last FROM lifehold_lease l WHERE l.name = p_name
        FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE lifehold_holder h SET mark = NULL
        WHERE h.name = p_name AND h.slot = 0 AND h.mark = p_mark;
    was_in := FOUND;
    IF NOT was_in THEN
        DELETE FROM lifehold_holder h WHERE h.name = p_name AND h.mark = p_mark;
        was_in := FOUND;
    END IF;
    IF NOT was_in THEN
        DELETE FROM lifehold_waiter w WHERE w.name = p_name AND w.mark = p_mark;
    END IF;
    IF lifehold_3_call(p_name, size, last, lifehold_now()) THEN
        RETURN was_in;  -- on the disk, before anybody is told
    END IF;
    PERFORM set_config('synchronous_commit', 'off', true);
    UPDATE lifehold_holder h SET busy = false WHERE h.name = p_name AND h.slot = 0
        AND h.mark IS NULL AND NOT EXISTS (SELECT 1 FROM lifehold_waiter w WHERE w.name = p_name)
        AND NOT EXISTS (SELECT 1 FROM lifehold_holder o
            WHERE o.name = p_name AND o.mark IS NOT NULL);
    RETURN was_in;
END $$;

CREATE OR REPLACE FUNCTION lifehold_1_renew(
    p_names text[], p_marks text[], p_ttls double precision[],
    OUT now double precision, OUT kept boolean[]
) LANGUAGE plpgsql AS $$
BEGIN{alone}
    now := lifehold_now();
    WITH asked AS (
        SELECT * FROM unnest(p_names, p_marks, p_ttls) WITH ORDINALITY a (name, mark, ttl, nr)
    ), done AS (
        UPDATE lifehold_holder h
            SET ttl = a.ttl, ends_at = lifehold_1_renew.now + a.ttl, renewals = h.renewals + 1
            FROM asked a WHERE h.name = a.name COLLATE "C" AND h.mark = a.mark COLLATE "C"
            AND h.ends_at > lifehold_1_renew.now RETURNING a.nr
    ) SELECT array_agg(d.nr IS NOT NULL ORDER BY a.nr) INTO kept
        FROM asked a LEFT JOIN done d ON d.nr = a.nr;
END $$;

-- A renewal that makes its holder lighter, so that others may come in.
CREATE OR REPLACE FUNCTION lifehold_1_lighten(
    p_name text, p_mark text, p_ttl double precision, p_weight integer,
    OUT now double precision, OUT kept boolean[]
) LANGUAGE plpgsql AS $$
DECLARE
    size integer;
    last bigint;
    old integer;
BEGIN{alone}
    SELECT l.capacity, l.token INTO size, last FROM lifehold_lease l WHERE l.name = p_name
        FOR NO KEY UPDATE;
    now := lifehold_now();
    SELECT h.weight INTO old FROM lifehold_holder h
        WHERE h.name = p_name AND h.mark = p_mark AND h.ends_at > now FOR NO KEY UPDATE;
    kept := ARRAY[old IS NOT NULL];
    UPDATE lifehold_holder h SET ttl = p_ttl, ends_at = now + p_ttl, renewals = h.renewals + 1,
            weight = least(old, p_weight), shared = h.shared OR p_weight < old
        WHERE h.name = p_name AND h.mark = p_mark AND old IS NOT NULL;
    IF p_weight < old THEN
        PERFORM lifehold_3_call(p_name, size, last, now);
    END IF;
END $$;

CREATE OR REPLACE FUNCTION lifehold_1_order(
    p_verb text, p_name text, p_reason text, p_by text, p_least bigint, p_text text
) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    lease lifehold_lease;
    known boolean;
    at double precision;
    before json;
    raised bigint;
BEGIN{alone}
    SELECT l.* INTO lease FROM lifehold_lease l WHERE l.name = p_name FOR NO KEY UPDATE;
    known := FOUND;
    WHILE NOT FOUND LOOP
        INSERT INTO lifehold_lease (name) VALUES (p_name) ON CONFLICT DO NOTHING;
        SELECT l.* INTO lease FROM lifehold_lease l WHERE l.name = p_name FOR NO KEY UPDATE;
    END LOOP;
    at := lifehold_now();
    before := lifehold_1_state(lease, at);
    IF p_verb = 'keep' THEN  -- by who holds the name now, alone
        INSERT INTO lifehold_kept AS k (name, token, text)
            SELECT p_name, p_least, p_text FROM lifehold_holder h WHERE h.name = p_name
                AND h.mark IS NOT NULL AND h.token = p_least
                AND h.ends_at + h.delay > at LIMIT 1
            ON CONFLICT (name) DO UPDATE SET token = excluded.token, text = excluded.text;
        RETURN CASE WHEN known THEN before END;
    END IF;
    IF p_verb = 'forget' THEN
        WITH gone AS (DELETE FROM lifehold_kept k WHERE k.name = p_name RETURNING k.*)
            SELECT (before::jsonb || jsonb_build_array(jsonb_build_array(g.token, g.text)))::json
            INTO before FROM lifehold_lease l LEFT JOIN gone g ON true WHERE l.name = p_name;
        RETURN CASE WHEN known THEN before END;
    END IF;
    IF p_verb = 'break' THEN
        DELETE FROM lifehold_holder h WHERE h.name = p_name;
        IF lease.token > 9223372036854775806 THEN  -- L13  no step has given it
            lease.token := NULL;
        END IF;
    END IF;
    raised := greatest(lifehold_1_token(lease.token, at), p_least);
    UPDATE lifehold_lease l SET token = raised WHERE l.name = p_name;
    INSERT INTO lifehold_audit (verb, name, reason, by, token, before)
        VALUES (p_verb, p_name, p_reason, p_by, raised, before::text);
    PERFORM lifehold_3_call(p_name, lease.capacity, raised, at);
    RETURN CASE WHEN known THEN before END;
END $$;
"""

STEPS = (ACQUIRE + REST).replace("{alone}", ALONE)
# ------------------------------------------------------------------------------------------------
# Names that nobody has used for long are forgotten, in SQL and for whoever asks for it.
#
# Promise: nobody holds such a name, waits for it or has left a text with it, and its last token
# lies behind the clock by as much as was asked for. L4: the next token of a name is not behind the
# server's clock, so it is above the forgotten one unless that clock is set back by more than that.
# A name whose token is above the clock, as after a bump, stays.
#
# How it could fail, and what keeps it. Somebody comes meanwhile: the row of the name is locked
# first, and one that is locked by another, be it a guard of data, is passed. Who waited for that
# row finds it gone, and makes it anew.


PRUNE = """
-- Forgets those of the next names that are unused since p_before. The last one seen, or NULL.
CREATE OR REPLACE FUNCTION lifehold_4_prune(
    p_after text, p_before double precision, p_most integer, OUT upto text, OUT gone bigint
) LANGUAGE plpgsql AS $$
DECLARE
    names text[];
    at double precision := lifehold_now();
BEGIN
    SELECT array_agg(l.name), max(l.name) INTO names, upto FROM (
        SELECT l.name FROM lifehold_lease l WHERE l.name > p_after ORDER BY l.name LIMIT p_most) l;
    SELECT array_agg(l.name) INTO names FROM (
        SELECT l.name FROM lifehold_lease l WHERE l.name = ANY (names)
            AND (l.token IS NULL OR l.token < floor(least(p_before, at) * 1e6))
            FOR UPDATE SKIP LOCKED) l;
    -- Anew behind the locks: who came in just before is seen.
    SELECT array_agg(n.name) INTO names FROM unnest(names) n (name)
        WHERE NOT EXISTS (SELECT 1 FROM lifehold_holder h WHERE h.name = n.name
            AND (h.acquired_at > p_before
                OR (h.mark IS NOT NULL AND h.ends_at + h.delay > p_before)))
        AND NOT EXISTS (SELECT 1 FROM lifehold_waiter w WHERE w.name = n.name AND w.dies_at > at)
        AND NOT EXISTS (SELECT 1 FROM lifehold_kept k WHERE k.name = n.name);
    DELETE FROM lifehold_waiter w WHERE w.name = ANY (names);
    DELETE FROM lifehold_owner o WHERE o.name = ANY (names);
    DELETE FROM lifehold_holder h WHERE h.name = ANY (names);
    DELETE FROM lifehold_lease l WHERE l.name = ANY (names);
    gone := coalesce(array_length(names, 1), 0);
END $$;
"""


SCHEMA = TRUST + TABLES + SMALL + LINE + STEPS + PRUNE + SESSIONS + PINNED
