"""The HTTP routes, one file per noun. Each handler parses, asks admission, writes once, answers."""
