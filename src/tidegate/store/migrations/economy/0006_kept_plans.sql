-- Plans are kept: SQL functions that are not inlined are planned anew in each transaction. Nothing
-- is looked up by a cid that was not given. And whether a check was replaced can be asked.

CREATE OR REPLACE FUNCTION _new_id() RETURNS uuid LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
BEGIN
    RETURN new_id();
END
$$;

CREATE OR REPLACE FUNCTION _is_of_now(id uuid) RETURNS boolean LANGUAGE plpgsql VOLATILE
SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    RETURN (SELECT abs(('x' || left(replace(id::text, '-', ''), 12))::bit(48)::bigint
                       - greatest((extract(epoch FROM clock_timestamp()) * 1000)::bigint,
                                  floor_ms + 1)) < 60000
              FROM id_floor
             WHERE one);
END
$$;

-- The transfer that the key of an older version stands for, known by that version's fingerprint.
CREATE FUNCTION _known_before(p pending_transfers) RETURNS uuid
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    known cids;
BEGIN
    -- What is computed for it is dear, and mostly there is nothing to compare it with.
    SELECT * INTO known FROM cids WHERE owner = p.guild_id AND cid = _key(p.initiator_id, p.cid);
    IF known.fingerprint IS NOT NULL AND known.fingerprint = _fingerprint(p) THEN
        RETURN known.transfer_id;
    END IF;
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION _known_transfer(p pending_transfers) RETURNS uuid
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    r inbox;
BEGIN
    IF EXISTS (SELECT
                 FROM cids
                WHERE owner = p.guild_id
                  AND cid = key_of('guild', _key(p.initiator_id, p.cid))) THEN
        r := _pool_request(p);
        RETURN _known_request(r.owner, key_of(r.space, r.cid),
                              request_fingerprint(r.flow, r.asset_id, r.amount, r.terms));
    END IF;
    RETURN _known_before(p);
END
$$;

CREATE OR REPLACE FUNCTION _request_transfer() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    -- One that the engine created is recorded here by the engine itself.
    IF EXISTS (SELECT FROM transfers WHERE id = NEW.transfer_id) THEN
        RETURN NULL;
    END IF;
    IF _known_before(NEW) IS NOT NULL OR _put_request(_pool_request(NEW)) <> NEW.transfer_id THEN
        RAISE EXCEPTION 'this cid is known already' USING ERRCODE = 'unique_violation';
    END IF;
    RETURN NULL;
END
$$;

-- Whether the three public functions are ours: then all checks of a round are made at once.
CREATE FUNCTION _checks_are_ours() RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
BEGIN
    RETURN (SELECT count(*) = 3
              FROM unnest(ARRAY['balance', 'cooldown', 'daily_limit']) AS c (name)
              JOIN pg_proc AS f
                ON f.oid = to_regprocedure('economy.fn_check_transfer_' || c.name || '(uuid)')
              JOIN pg_language AS l ON l.oid = f.prolang AND l.lanname = 'sql'
             WHERE btrim(f.prosrc, E' \n') = format('SELECT _check_one(p_transfer_id, %L)', c.name)
               AND f.proconfig = (SELECT o.proconfig
                                    FROM pg_proc AS o
                                   WHERE o.oid = 'economy._checks_are_ours()'::regprocedure));
END
$$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA economy FROM PUBLIC;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA economy TO tidegate_engine;
