"""The stand-in message packages are wire-compatible: their type hashes are those of ROS 2 Jazzy's packages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ament_index_python = pytest.importorskip("ament_index_python")

# Published hashes: TFMessage in many Jazzy logs and bags, the others in public builds of moveit_msgs,
# control_msgs and object_recognition_msgs from sources with the same fields as their Jazzy releases.
PUBLISHED = {
    "tf2_msgs/msg/TFMessage": "e369d0f05a23ae52508854b66f6aa0437f3449d652e8cbf22d5abe85d020f087",
    "object_recognition_msgs/msg/ObjectType": "5eb3ee3976403366d7c50d7dbee8bec96b3bced1e752674a7194a35841632134",
    "moveit_msgs/msg/DisplayTrajectory": "dd351cbd6d9986eb019306910ec09236a136a02dbc0b3465707cb62f2d56e22b",
    "moveit_msgs/msg/RobotTrajectory": "af1dc87fb94d13e5f233e9c210d2662fa06143a8b3c6aec47c57ad45074fcce8",
    "moveit_msgs/msg/RobotState": "7c516dc15713e545cb2836c5ca745fbdcfcc10de4855a41c83e6b4bf1afc3f83",
    "moveit_msgs/msg/AttachedCollisionObject": "7fdfe7951a33a857f20fc42c9ed410a38d06dd0c209ac774ecea746dc487dc41",
    "moveit_msgs/msg/CollisionObject": "74b0acd6d56be032bf4f764b2c2633f50588b5fb2bd71e97206c59052747cf7e",
    "control_msgs/msg/JointTolerance": "c254f9cece0f3b733017b6990fd46d1326e25242d6b8844398c97d9a88e7d648",
    "control_msgs/msg/JointComponentTolerance": "739ea7566931944d33830fa10f1bf5e7a7fbdc3172bce7a7eaac642bd6e3ffa4",
    "control_msgs/action/FollowJointTrajectory": "738ebcb7a2d7cfa42f9f1001cc99ce3a4383d1cfe508015d9be8485e4b1c66f6",
    "control_msgs/action/FollowJointTrajectory_Goal": (
        "8a9060704b269608f5a340934cc26e66869dd14bdac29e2e7fd9ec8b9882d205"
    ),
    "control_msgs/action/FollowJointTrajectory_Result": (
        "8002e99ed2c14c6faa522f2a93c26d744c5982f254f9e98ff9c6f19789bdb220"
    ),
    "control_msgs/action/FollowJointTrajectory_Feedback": (
        "3fd0aaecf71725121ae1ff7f01098a5e0da581e672be18a6b2c286cb43d96b49"
    ),
    "control_msgs/action/FollowJointTrajectory_SendGoal": (
        "b13789dddc325a7a962825c45e28c77d37237ec129dd0c34dc5994562938c57f"
    ),
}


@pytest.mark.parametrize("type_name", PUBLISHED)
def test_type_hash_is_the_published_one(type_name: str) -> None:
    package, group, name = type_name.split("/")
    share = Path(ament_index_python.get_package_share_directory(package))
    document = json.loads((share / group / f"{name.split('_')[0]}.json").read_text())
    hashes = {entry["type_name"]: entry["hash_string"] for entry in document["type_hashes"]}
    assert hashes[type_name] == f"RIHS01_{PUBLISHED[type_name]}"


def test_colcon_ignores_the_stand_ins() -> None:
    root = Path(__file__).parents[3]
    assert (root / "compat" / "COLCON_IGNORE").is_file()
    assert {p.parent.name for p in (root / "compat").glob("*/package.xml")} == {n.split("/")[0] for n in PUBLISHED}
