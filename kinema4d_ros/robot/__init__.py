"""Robot models from URDF and meshes: links, joints, limits and shapes.

>>> from kinema4d_ros.robot import Robot
>>> robot = Robot.load("yam")            # or Robot.load("path/to/any.urdf")
>>> robot.joint_names
('joint1', 'joint2', 'joint3', 'joint4', 'joint5', 'joint6', 'left_finger_joint')
"""

from kinema4d_ros.robot.description import robot_description
from kinema4d_ros.robot.gripper import Fingers, Gripper, VendorJoint
from kinema4d_ros.robot.model import Geometry, Inertial, Joint, JointLimits, Link, Mimic, Robot, TriangleMesh

__all__ = [
    "Fingers",
    "Geometry",
    "Gripper",
    "Inertial",
    "Joint",
    "JointLimits",
    "Link",
    "Mimic",
    "Robot",
    "TriangleMesh",
    "VendorJoint",
    "robot_description",
]
