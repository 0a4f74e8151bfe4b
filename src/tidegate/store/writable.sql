-- read_only: whether this session can only read.
-- It reads two settings and no table. It is true on a standby and on a read-only primary.
SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean;

-- grow_file: make a file of about 700 kB grow, which fails on a full disk.
-- The table is temporary and is dropped at the end of the transaction: no other session sees it or
-- waits for it.
CREATE TEMPORARY TABLE room_taken ON COMMIT DROP AS
SELECT number
FROM generate_series(1, 20000) AS number;
