"""Shared types: camera, trajectory, robot pointmap, rollout, task, errors."""
