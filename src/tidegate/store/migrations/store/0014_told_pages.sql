-- Which transfers somebody was told of. A worker marks a transfer as paged in the transaction that
-- decides it, and may die before the alert has left. What is paged and not here is told by the next
-- check of whoever watches.
CREATE TABLE told_pages (
    transfer_id uuid PRIMARY KEY,
    state       text NOT NULL,
    error       text NOT NULL
);
GRANT INSERT, UPDATE, DELETE ON told_pages TO tidegate_engine;
