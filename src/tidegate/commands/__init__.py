"""What can be typed: each command takes values, and its options are the fields of those."""
