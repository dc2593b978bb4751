"""The functions of a store in PostgreSQL: each question of a backend is one call of one of them.

Promise: one round trip and one transaction. It locks the row of its name, and sees what all before
have done. That needs READ COMMITTED, where each statement inside looks anew; any other level
of isolation is refused, since two could come in. The rules are those of
store/ledger.py, line by line.

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

from .line import LINE
from .prune import PRUNE
from .session_sql import TABLE as SESSIONS
from .tables import PINNED, SMALL, TABLES, TRUST

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
        SELECT count(*), coalesce(sum(h.weight), 0), coalesce(max(h.nr), 0),
            coalesce(bool_or(h.mark = p_mark), false),
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
SCHEMA = TRUST + TABLES + SMALL + LINE + STEPS + PRUNE + SESSIONS + PINNED
