"""Steps that a device repeats by itself, and what the runner needs of a device for that."""
