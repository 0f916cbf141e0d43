"""What is true now: the arm's merged joint states, and the gate that lets an approved plan pass."""

from kinema4d_ros.live.arm import ArmState, JointStateMonitor, MonitorCounts
from kinema4d_ros.live.gate import Approval, ExecutionGate, GatePolicy

__all__ = ["Approval", "ArmState", "ExecutionGate", "GatePolicy", "JointStateMonitor", "MonitorCounts"]
