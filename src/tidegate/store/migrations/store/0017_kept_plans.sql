-- A function in SQL that cannot be inlined is planned anew in every transaction that calls it. The
-- ones that every request calls are in PL/pgSQL, which keeps its plans for the session.

-- As before; the same as Request.fingerprint in Python.
CREATE OR REPLACE FUNCTION request_fingerprint(p_flow text, p_asset_id integer, p_amount numeric,
                                               p_terms jsonb) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    units text := trunc(p_amount)::text;
    print text := length(p_flow) || ':' || p_flow || length(p_asset_id::text) || ':' || p_asset_id
                  || length(units) || ':' || units;
    term record;
BEGIN
    FOR term IN SELECT e.key, e.value FROM jsonb_each_text(p_terms) AS e ORDER BY e.key COLLATE "C"
    LOOP
        print := print || length(term.key) || ':' || term.key
                       || length(term.value) || ':' || term.value;
    END LOOP;
    RETURN substr(sha256(convert_to(print, 'UTF8')), 1, 16);
END
$$;

CREATE OR REPLACE FUNCTION new_id() RETURNS uuid LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
BEGIN
    RETURN (SELECT (lpad(to_hex(greatest((extract(epoch FROM clock_timestamp()) * 1000)::bigint,
                                         floor_ms + 1)), 12, '0')
                    || substr(replace(gen_random_uuid()::text, '-', ''), 13))::uuid
              FROM id_floor
             WHERE one);
END
$$;
