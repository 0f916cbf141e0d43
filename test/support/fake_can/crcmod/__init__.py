"""Stand-in: i2rt imports it to write firmware, which the tests do not."""
