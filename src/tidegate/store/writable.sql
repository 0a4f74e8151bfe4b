-- read_only: whether this session can only read
-- It reads two settings and no table. A standby answers as well as a primary made read-only.
SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean;

-- take_room: make a file of about 700 kB grow, which fails on a full disk
-- The table is this session's own and goes with the transaction: nobody else sees or waits for it.
CREATE TEMPORARY TABLE room_taken ON COMMIT DROP AS
SELECT number
FROM generate_series(1, 20000) AS number;
