"""Stand-in: i2rt names one class of it in annotations."""
