"""Stand-in: i2rt imports it for recordings that the tests do not make."""
