-- What older versions left: keys without a space, and dates that the pool's migrations cannot take.

-- Versions before the key spaces wrote the keys of operators and guilds without a prefix. A process
-- of such a version still does so while it runs beside this one. So before a request is put under a
-- new key in a space, its bare cid is looked up. If it leads to a transfer of the same flow, the
-- request is refused: SQL cannot compute the fingerprint of an older version, so it cannot compare
-- the two, and an error is safe. A transfer of another flow does not matter: it is another request,
-- and users' keys never have a prefix. Nor does a transfer without a cid, whose id is its key.
--
-- The lookups use primary keys, even in a plan that a session made while the tables were small.
CREATE OR REPLACE FUNCTION _put_request(p inbox) RETURNS uuid
LANGUAGE plpgsql SET search_path FROM CURRENT SET enable_seqscan TO off AS $$
DECLARE
    key text := coalesce(key_of(p.space, p.cid), p.id::text);
    print bytea := request_fingerprint(p.flow, p.asset_id, p.amount, p.terms);
    known uuid;
BEGIN
    INSERT INTO cids (owner, cid, fingerprint, transfer_id)
    VALUES (p.owner, key, print, p.id)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        known := _known_request(p.owner, key, print);
        IF known IS NULL THEN
            RAISE EXCEPTION 'another session has just asked under this cid: try again'
                USING ERRCODE = 'serialization_failure';
        END IF;
        RETURN known;
    END IF;
    IF key <> p.cid THEN
        SELECT c.transfer_id INTO known FROM cids AS c WHERE c.owner = p.owner AND c.cid = p.cid;
    END IF;
    IF known IS NOT NULL THEN
        PERFORM FROM every_transfer AS t
          WHERE t.id = known
            AND t.flow = p.flow
            AND t.cid = p.cid;
        IF FOUND THEN
            RAISE EXCEPTION 'IDEMPOTENCY_MISMATCH: this cid stands for transfer % of an older '
                            'version, which may be the same request', known
                USING ERRCODE = 'TG422',
                      HINT = 'Compare the two. If they differ, use another cid.';
        END IF;
    END IF;
    INSERT INTO inbox (id, owner, flow, asset_id, amount, terms, space, cid, expires_at)
    VALUES (p.id, p.owner, p.flow, p.asset_id, p.amount, p.terms, p.space, p.cid, p.expires_at);
    PERFORM pg_notify('tidegate_due', 'inbox');
    RETURN p.id;
END
$$;

-- Older versions took any date for the end of a transfer of the pool. The migrations of the guild
-- economy run after those of the store and bring such dates into bounds, but they fail at two kinds
-- of records: one with -infinity, and one of an archived transfer, which the trigger does not find.
-- Both kinds are changed here, so that the migrations after this one can go on.
DO $$
DECLARE
    first CONSTANT timestamptz := '2000-01-01 00:00+00';
    last CONSTANT timestamptz := '9999-12-31 00:00+00';
    odd uuid[];
BEGIN
    IF to_regclass('economy.home') IS NULL THEN
        RETURN;
    END IF;
    -- Only the store in which the guilds live.
    IF NOT EXISTS (SELECT FROM economy.home WHERE store = current_schema()) THEN
        RETURN;
    END IF;
    odd := ARRAY(SELECT p.transfer_id
                   FROM economy.pending_transfers AS p
                  WHERE p.expires_at NOT BETWEEN first AND last);
    IF odd = '{}' THEN
        RETURN;
    END IF;
    -- The trigger is not needed here: the engine's record is changed alike, or it is archived.
    ALTER TABLE economy.pending_transfers DISABLE TRIGGER agree;
    UPDATE transfers
       SET expires_at = least(greatest(expires_at, first), last),
           deadline_at = least(deadline_at, last)
     WHERE id = ANY(odd);
    UPDATE economy.pending_transfers
       SET expires_at = least(greatest(expires_at, first), last)
     WHERE transfer_id = ANY(odd);
    ALTER TABLE economy.pending_transfers ENABLE TRIGGER agree;
END
$$;
