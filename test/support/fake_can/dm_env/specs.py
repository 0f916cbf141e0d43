"""Stand-in."""


class Array:
    """Named in annotations."""
