"""The types everything else speaks: camera, trajectory, robot pointmap, rollout, task, errors."""
