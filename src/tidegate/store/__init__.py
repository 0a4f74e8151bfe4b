"""The engine's tables. Every statement that the engine runs is in queries.sql."""
