"""Worlds that commands and policies act in: the lab, a world model, a recording.

    World.run(policy or commands, task) ─> Run: commands, verdict, and states (lab) or a rollout (model)

`WorldEnv` makes a Gymnasium environment of any of them.
"""

from kinema4d_ros.worlds.lab import LabWorld, true_rollout
from kinema4d_ros.worlds.model import ModelWorld
from kinema4d_ros.worlds.world import Run, Scene, Session, World

__all__ = ["LabWorld", "ModelWorld", "Run", "Scene", "Session", "World", "true_rollout"]
