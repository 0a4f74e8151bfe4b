-- Who this store is. A trading core serves one store, and knows it by this. It survives dump and
-- restore. A copy that shall live beside the original gets another: `tidegate store new-identity`.
CREATE TABLE store_identity (
    one   boolean PRIMARY KEY DEFAULT true CHECK (one),
    store uuid    NOT NULL
);
INSERT INTO store_identity (store) VALUES (gen_random_uuid());

-- The floor of this store's ids. A system may forget every operation of an id below it, so that no
-- new id is made below it. Written before it is sent to the trading core, and read with the time.
CREATE TABLE id_floor (
    one      boolean PRIMARY KEY DEFAULT true CHECK (one),
    floor    uuid    NOT NULL,
    floor_ms bigint  NOT NULL GENERATED ALWAYS AS
                     (('x' || left(replace(floor::text, '-', ''), 12))::bit(48)::bigint) STORED
);
INSERT INTO id_floor (floor) VALUES ('00000000-0000-0000-0000-000000000000');
GRANT UPDATE (floor) ON id_floor TO tidegate_engine;

-- For SQL that makes ids. With the rights of its owner: who may make a transfer need not be able
-- to read the store's tables.
CREATE FUNCTION new_id() RETURNS uuid LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
    SELECT (lpad(to_hex(greatest((extract(epoch FROM clock_timestamp()) * 1000)::bigint,
                                 floor_ms + 1)), 12, '0')
            || substr(replace(gen_random_uuid()::text, '-', ''), 13))::uuid
      FROM id_floor
     WHERE one
$$;

-- For whoever looks for what is new: an id's time need not be the time of creation. Rows are
-- written in this order, so that a summary of each few pages is enough, and costs almost nothing.
CREATE INDEX transfers_created ON transfers USING brin (created_at)
    WITH (pages_per_range = 32, autosummarize = on);
