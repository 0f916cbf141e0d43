"""Stand-in."""


class DecoderFactory:
    """Not used."""
