-- The inbox refuses what its readers could not read, and shows a program its own requests only.

-- No date that a client library cannot read, nor one whose microseconds no bigint holds: the engine
-- reads requests in batches, and one such date would stop all of them.
UPDATE inbox
   SET expires_at = least(greatest(expires_at, '2000-01-01 00:00+00'), '9999-12-31 00:00+00')
 WHERE expires_at NOT BETWEEN '2000-01-01 00:00+00' AND '9999-12-31 00:00+00';
ALTER TABLE inbox ADD CONSTRAINT inbox_expires_at_bounds
    CHECK (expires_at BETWEEN '2000-01-01 00:00+00' AND '9999-12-31 00:00+00');

-- Without the barrier, a reader's own function in WHERE could be tried on other readers' rows.
ALTER VIEW inbox_requests SET (security_barrier = true);

-- As before, but everything is checked before it is computed with: an amount that is infinite or
-- too large is refused with the same words as any other.
CREATE OR REPLACE FUNCTION request_transfer(
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
    IF p_owner <= 0 THEN
        RAISE EXCEPTION 'an owner is a number from 1 on, not %', p_owner
            USING ERRCODE = 'check_violation';
    END IF;
    IF NOT EXISTS (SELECT FROM flow_tables WHERE flow = p_flow) THEN
        RAISE EXCEPTION 'flow % is not installed here: run tidegate migrate with it', p_flow
            USING ERRCODE = 'check_violation';
    END IF;
    SELECT * INTO asset FROM assets WHERE code = p_asset;
    IF asset.id IS NULL THEN
        RAISE EXCEPTION 'there is no asset %', p_asset USING ERRCODE = 'check_violation';
    END IF;
    IF (p_amount > 0 AND p_amount < 1e20 AND p_amount = round(p_amount, asset.decimals))
       IS NOT TRUE THEN
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
    IF p_expires_at NOT BETWEEN '2000-01-01 00:00+00' AND '9999-12-31 00:00+00' THEN
        RAISE EXCEPTION 'expires_at is a time before the year 10000, not %', p_expires_at
            USING ERRCODE = 'check_violation';
    END IF;
    p.id := new_id();
    p.owner := p_owner;
    p.flow := p_flow;
    p.asset_id := asset.id;
    p.amount := p_amount * ('1e' || asset.decimals)::numeric;
    p.terms := p_terms;
    p.space := CASE WHEN p_flow IN ('deposit', 'external_withdrawal') THEN 'operator' ELSE '' END;
    p.cid := p_cid;
    p.expires_at := p_expires_at;
    RETURN _put_request(p);
END
$$;
