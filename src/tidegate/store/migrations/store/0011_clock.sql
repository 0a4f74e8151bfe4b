-- The latest time that this database has shown to any of our processes. If it shows an earlier one,
-- its clock was set back, and what was leased before then would wait until the time comes again.
CREATE TABLE store_clock (
    latest timestamptz NOT NULL
);
CREATE UNIQUE INDEX store_clock_once ON store_clock ((true));
INSERT INTO store_clock (latest) VALUES (now());
GRANT UPDATE ON store_clock TO tidegate_engine;
