"""File formats: trajectories, images, videos, point clouds, rollout folders, and the wire formats."""
