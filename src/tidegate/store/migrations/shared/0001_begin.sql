-- What all stores of one database share: assets, settings, the brake, and the states of the flows.

CREATE TABLE assets (
    id                        integer       PRIMARY KEY CHECK (id > 0),
    code                      text          NOT NULL UNIQUE CHECK (code ~ '^[A-Z0-9]{1,16}$'),
    decimals                  smallint      NOT NULL CHECK (decimals BETWEEN 0 AND 18),
    status                    text          NOT NULL DEFAULT 'ACTIVE'
                                            CHECK (status IN ('ACTIVE', 'SUSPENDED')),
    internal_transfer_enabled boolean       NOT NULL DEFAULT true,
    min_transfer_amount       numeric(39,0) NOT NULL DEFAULT 1 CHECK (min_transfer_amount > 0),
    max_transfer_amount       numeric(39,0) CHECK (max_transfer_amount >= min_transfer_amount)
);

CREATE TABLE settings (
    name  text  PRIMARY KEY,
    value jsonb NOT NULL
);

-- The brake. At most one halt is in force, and nothing moves while one is.
CREATE TABLE halts (
    id             bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    reason         text        NOT NULL CHECK (reason <> ''),
    actor          text        NOT NULL,
    at             timestamptz NOT NULL DEFAULT now(),
    resumed_at     timestamptz,
    resumed_reason text        CHECK (resumed_reason <> ''),
    resumed_by     text,
    CHECK ((resumed_at IS NULL) = (resumed_reason IS NULL)),
    CHECK ((resumed_at IS NULL) = (resumed_by IS NULL))
);
CREATE UNIQUE INDEX halts_in_force ON halts ((true)) WHERE resumed_at IS NULL;

-- The states of every flow, as they were last installed in any store.
CREATE TABLE flow_states (
    flow   text     NOT NULL,
    state  text     NOT NULL,
    place  text     NOT NULL,
    is_end boolean  NOT NULL,
    code   smallint,
    PRIMARY KEY (flow, state)
);

INSERT INTO assets (id, code, decimals)
VALUES (1, 'BTC', 8), (2, 'ETH', 18), (3, 'USDT', 6), (4, 'USDC', 6), (5, 'USDD', 6),
       (6, 'POINT', 0);

-- An id as its 26 letters of Crockford's base 32: two zero bits, then the 128 of the id.
CREATE FUNCTION ulid(id uuid) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT string_agg(
               substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ',
                      substr(bits, 5 * letter + 1, 5)::bit(5)::integer + 1, 1),
               '' ORDER BY letter)
      FROM (SELECT '00' || ('x' || replace(id::text, '-', ''))::bit(128)::text) AS b (bits),
           generate_series(0, 25) AS letter
$$;

GRANT INSERT, UPDATE ON halts TO tidegate_engine;
GRANT UPDATE ON assets, settings TO tidegate_engine;
