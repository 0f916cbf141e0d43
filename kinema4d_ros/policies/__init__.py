"""Policies that can be judged: scripted, replayed, learned, remote. One protocol for all of them."""

from kinema4d_ros.policies.protocol import ActionChunk, EpisodeStart, Observation, Policy, PolicyError

__all__ = ["ActionChunk", "EpisodeStart", "Observation", "Policy", "PolicyError"]
