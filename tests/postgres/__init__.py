"""Tests of the embedded PostgreSQL."""
