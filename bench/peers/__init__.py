"""What people would use instead, each in an environment of its own."""
