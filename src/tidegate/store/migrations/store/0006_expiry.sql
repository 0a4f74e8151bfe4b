-- When a transfer ends if nobody has decided by then: takes the place of its states' deadlines.
ALTER TABLE transfers ADD COLUMN expires_at timestamptz;
