-- The inbox: any program with access to the database asks for a transfer in its own transaction.
-- The key is reserved and the id is known at once; the engine creates the transfer under that id.

-- Which kind of caller gave the key: NULL for users and for every key from before the spaces.
ALTER TABLE transfers ADD COLUMN space text;
ALTER TABLE archived_transfers ADD COLUMN space text;

CREATE OR REPLACE VIEW every_transfer AS
SELECT id, owner, flow, state, lane, due_at, version, attempts, retries, paged, parties, asset_id,
       amount, undoes, parent, detail, cid, head_hash, error, trace, deadline_at, created_at,
       updated_at, NULL::timestamptz AS cid_forgotten_at, expires_at, fee, space
  FROM transfers
 UNION ALL
SELECT id, owner, flow, state, lane, due_at, version, attempts, retries, paged, parties, asset_id,
       amount, undoes, parent, detail, cid, head_hash, error, trace, deadline_at, created_at,
       updated_at, cid_forgotten_at, expires_at, fee, space
  FROM archived_transfers;

-- The text of a key in its space. Callers' keys are ASCII: none looks like one of another space.
CREATE FUNCTION key_of(p_space text, p_cid text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN coalesce(p_space, '') = '' THEN p_cid ELSE p_space || '§' || p_cid END
$$;

-- What must be equal for the same key to mean the same request: as Request.fingerprint in Python.
CREATE FUNCTION request_fingerprint(p_flow text, p_asset_id integer, p_amount numeric,
                                    p_terms jsonb) RETURNS bytea
LANGUAGE sql IMMUTABLE AS $$
    SELECT substr(sha256(convert_to(string_agg(length(p.part) || ':' || p.part, ''
                                               ORDER BY p.term COLLATE "C", p.n), 'UTF8')), 1, 16)
      FROM (SELECT '', n, part
              FROM unnest(ARRAY[p_flow, p_asset_id::text, trunc(p_amount)::text])
                   WITH ORDINALITY AS f (part, n)
             UNION ALL
            SELECT e.key, 1, e.key FROM jsonb_each_text(p_terms) AS e
             UNION ALL
            SELECT e.key, 2, e.value FROM jsonb_each_text(p_terms) AS e) AS p (term, n, part)
$$;

CREATE TABLE inbox (
    id           uuid          PRIMARY KEY,  -- Of the transfer that it becomes.
    owner        bigint        NOT NULL CHECK (owner > 0),
    flow         text          NOT NULL,
    asset_id     integer       NOT NULL,
    amount       numeric(39,0) NOT NULL CHECK (amount > 0),
    terms        jsonb         NOT NULL,
    space        text          NOT NULL,
    cid          text,
    expires_at   timestamptz   CHECK (isfinite(expires_at)),
    requested_by name          NOT NULL DEFAULT session_user,
    requested_at timestamptz   NOT NULL DEFAULT now(),
    due_at       timestamptz   NOT NULL DEFAULT now(),
    attempts     integer       NOT NULL DEFAULT 0,
    error        text,  -- Why it could not be decided yet.
    outcome      text          CHECK (outcome IN ('created', 'refused')),
    refusal      text,
    decided_at   timestamptz,
    CHECK ((outcome IS NULL) = (decided_at IS NULL)),
    CHECK ((outcome = 'refused') = (refusal IS NOT NULL))
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX inbox_due ON inbox (due_at) WHERE outcome IS NULL;
CREATE INDEX inbox_decided ON inbox (decided_at) WHERE outcome IS NOT NULL;

-- Which database role may ask for which flow, for which owners.
CREATE TABLE inbox_grants (
    role   name      NOT NULL,
    flow   text      NOT NULL,
    owners int8range NOT NULL DEFAULT '(,)',
    PRIMARY KEY (role, flow, owners)
);

-- The transfer that a key stands for, if it is known; another request under it is refused.
CREATE FUNCTION _known_request(p_owner bigint, p_key text, p_fingerprint bytea) RETURNS uuid
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    known cids;
BEGIN
    SELECT * INTO known FROM cids WHERE owner = p_owner AND cid = p_key;
    IF known.fingerprint <> p_fingerprint THEN
        RAISE EXCEPTION 'IDEMPOTENCY_MISMATCH: this cid stands for another transfer'
            USING ERRCODE = 'TG422';
    END IF;
    RETURN known.transfer_id;
END
$$;

-- Reserve the key and put the request into the inbox; return the id that the key stands for. Only
-- for our own functions: they say who may ask for what.
CREATE FUNCTION _put_request(p inbox) RETURNS uuid
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
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
    INSERT INTO inbox (id, owner, flow, asset_id, amount, terms, space, cid, expires_at)
    VALUES (p.id, p.owner, p.flow, p.asset_id, p.amount, p.terms, p.space, p.cid, p.expires_at);
    PERFORM pg_notify('tidegate_due', 'inbox');
    RETURN p.id;
END
$$;

-- Ask for a transfer, once per cid: the same request again returns the first id. The amount is in
-- units of the asset, such as 12.5. The terms are the flow's own, all of them texts.
CREATE FUNCTION request_transfer(
    p_flow text, p_owner bigint, p_asset text, p_amount numeric, p_terms jsonb,
    p_cid text DEFAULT NULL, p_expires_at timestamptz DEFAULT NULL) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    p inbox;
    asset assets;
BEGIN
    IF NOT EXISTS (SELECT
                     FROM inbox_grants AS g
                     JOIN pg_roles AS r ON r.rolname = g.role
                    WHERE pg_has_role(session_user, r.oid, 'MEMBER')
                      AND g.flow = p_flow
                      AND g.owners @> p_owner) THEN
        RAISE EXCEPTION 'role % may not request % for owner %: see inbox_grants',
            session_user, p_flow, p_owner USING ERRCODE = 'insufficient_privilege';
    END IF;
    IF NOT EXISTS (SELECT FROM flow_tables WHERE flow = p_flow) THEN
        RAISE EXCEPTION 'flow % is not installed here: run tidegate migrate with it', p_flow
            USING ERRCODE = 'check_violation';
    END IF;
    SELECT * INTO asset FROM assets WHERE code = p_asset;
    IF asset.id IS NULL THEN
        RAISE EXCEPTION 'there is no asset %', p_asset USING ERRCODE = 'check_violation';
    END IF;
    p.amount := p_amount * ('1e' || asset.decimals)::numeric;
    IF (p_amount > 0 AND p_amount < 1e21) IS NOT TRUE
       OR p.amount <> p_amount * ('1e' || asset.decimals)::numeric THEN
        RAISE EXCEPTION 'amount % is not a positive amount of % with at most % decimals',
            p_amount, p_asset, asset.decimals USING ERRCODE = 'check_violation';
    END IF;
    IF p_cid !~ '^[ -~]{1,64}$' THEN
        RAISE EXCEPTION 'a cid has 1 to 64 printable ASCII characters'
            USING ERRCODE = 'check_violation';
    END IF;
    IF jsonb_typeof(p_terms) IS DISTINCT FROM 'object' OR length(p_terms::text) > 4000
       OR EXISTS (SELECT
                    FROM jsonb_each(p_terms) AS e
                   WHERE jsonb_typeof(e.value) <> 'string' OR e.key = '') THEN
        RAISE EXCEPTION 'terms are a JSON object of texts, of at most 4000 characters'
            USING ERRCODE = 'check_violation';
    END IF;
    p.id := new_id();
    p.owner := p_owner;
    p.flow := p_flow;
    p.asset_id := asset.id;
    p.terms := p_terms;
    p.space := CASE WHEN p_flow IN ('deposit', 'external_withdrawal') THEN 'operator' ELSE '' END;
    p.cid := p_cid;
    p.expires_at := p_expires_at;
    RETURN _put_request(p);
END
$$;

-- What became of the requests of whoever looks.
CREATE VIEW inbox_requests AS
SELECT id, owner, flow, asset_id, amount, terms, cid, expires_at, requested_at, attempts, error,
       outcome, refusal, decided_at
  FROM inbox
 WHERE requested_by = session_user;

-- Forget requests that were decided long ago. A refused one gives its key free.
CREATE FUNCTION forget_requests(p_older_s float8, p_limit integer) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $$
    WITH old AS MATERIALIZED (
        SELECT id
          FROM inbox
         WHERE outcome IS NOT NULL
           AND decided_at < now() - p_older_s * interval '1 second'
         ORDER BY decided_at
         LIMIT p_limit
           FOR UPDATE SKIP LOCKED
    ),
    gone AS (
        DELETE FROM inbox AS i
         WHERE i.id = ANY(ARRAY(SELECT id FROM old))
        RETURNING i.*
    ),
    freed AS (
        DELETE FROM cids AS c
         USING gone AS g
         WHERE g.outcome = 'refused'
           AND c.owner = g.owner
           AND c.cid = coalesce(key_of(g.space, g.cid), g.id::text)
           AND c.transfer_id = g.id
    )
    SELECT count(*) FROM gone
$$;

REVOKE ALL ON FUNCTION key_of(text, text), request_fingerprint(text, integer, numeric, jsonb),
    _known_request(bigint, text, bytea), _put_request(inbox),
    request_transfer(text, bigint, text, numeric, jsonb, text, timestamptz),
    forget_requests(float8, integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION key_of(text, text), forget_requests(float8, integer)
   TO tidegate_engine;
GRANT EXECUTE ON FUNCTION key_of(text, text) TO tidegate_auditor;
GRANT UPDATE ON inbox TO tidegate_engine;
GRANT EXECUTE ON FUNCTION
    request_transfer(text, bigint, text, numeric, jsonb, text, timestamptz) TO tidegate_inbox;
GRANT SELECT ON inbox_requests TO tidegate_inbox;
DO $$
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO tidegate_inbox', current_schema());
END
$$;
