-- Ids are made as in the rest of the store, above its floor. With the rights of its owner, because
-- whoever may pay need not be able to read the store's tables.
CREATE OR REPLACE FUNCTION _new_id() RETURNS uuid LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
    SELECT new_id()
$$;

-- Within a minute of the time for new ids, which is the clock's unless the floor is ahead of it.
CREATE OR REPLACE FUNCTION _is_of_now(id uuid) RETURNS boolean LANGUAGE sql VOLATILE
SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT abs(('x' || left(replace(id::text, '-', ''), 12))::bit(48)::bigint
               - greatest((extract(epoch FROM clock_timestamp()) * 1000)::bigint, floor_ms + 1))
           < 60000
      FROM id_floor
     WHERE one
$$;
