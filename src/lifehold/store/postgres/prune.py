"""Names that nobody has used for long are forgotten, in SQL and for whoever asks for it.

Promise: nobody holds such a name, waits for it or has left a text with it, and its last token lies
behind the clock by as much as was asked for. L4: the next token of a name is not behind the
server's clock, so it is above the forgotten one unless that clock is set back by more than that. A
name whose token is above the clock, as after a bump, stays.

How it could fail, and what keeps it. Somebody comes meanwhile: the row of the name is locked first,
and one that is locked by another, be it a guard of data, is passed. Who waited for that row finds
it gone, and makes it anew.
"""

from __future__ import annotations

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
