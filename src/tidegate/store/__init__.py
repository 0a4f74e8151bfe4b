"""The engine's tables, and the SQL statements that read and write them."""
