"""The commands: each takes frozen values, whose fields are its options and arguments."""
