"""The engine: claim what is due, ask, decide, record. The same for every flow."""
