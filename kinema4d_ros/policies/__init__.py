"""Policies for evaluation: scripted, replayed, learned and remote, all with one protocol."""

from kinema4d_ros.policies.protocol import ActionChunk, EpisodeStart, Observation, Policy, PolicyError

__all__ = ["ActionChunk", "EpisodeStart", "Observation", "Policy", "PolicyError"]
