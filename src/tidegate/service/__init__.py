"""The HTTP service around the engine: who asks, what is asked, and what is answered."""
