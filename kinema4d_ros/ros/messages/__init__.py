"""Conversions between messages and the core's types: images, points, cameras, plans, rollouts, reports, ..."""
