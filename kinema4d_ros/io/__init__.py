"""Files and bytes: trajectories, images, videos, point clouds, rollout folders, and the wire formats."""
