"""What is true now: where the arm is, which plans may be previewed, which may move it, what is played."""

from kinema4d_ros.live.arm import ArmState, JointStateMonitor, MonitorCounts
from kinema4d_ros.live.gate import Approval, ExecutionGate, GatePolicy
from kinema4d_ros.live.plans import CheckedPlan, check_plan, plan_from_poses, start_gap
from kinema4d_ros.live.playback import PlaybackClock
from kinema4d_ros.live.world import WorldChanges, believed

__all__ = [
    "Approval",
    "ArmState",
    "CheckedPlan",
    "ExecutionGate",
    "GatePolicy",
    "JointStateMonitor",
    "MonitorCounts",
    "PlaybackClock",
    "WorldChanges",
    "believed",
    "check_plan",
    "plan_from_poses",
    "start_gap",
]
