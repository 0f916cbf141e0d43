"""Stand-in."""


class Writer:
    """Not used."""
