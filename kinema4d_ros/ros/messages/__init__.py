"""Messages <-> the core's types: images, points, cameras, trajectories, requests, rollouts, reports, errors."""
