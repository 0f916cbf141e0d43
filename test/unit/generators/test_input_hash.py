"""The hash of a request: every input changes it, the seed and the memory layout do not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.requests import robot_of_a_square

from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.generators import CommandedMotion, GenerateRequest
from kinema4d_ros.generators.protocol import request_sha256
from kinema4d_ros.robot import Robot

KNOWN = "2133d476bcfa9aec4870d48226c84f600d74e3d100b12dad3eb09448a1a2b68a"
"""The hash of `good` before requests had commands."""


def good() -> GenerateRequest:
    return GenerateRequest(np.zeros((48, 72, 3), np.uint8), robot_of_a_square(), np.ones((48, 72), np.float32))


def test_the_same_inputs_give_the_same_hash() -> None:
    first, second = good(), good()
    assert request_sha256(first) == request_sha256(second)
    assert len(request_sha256(first)) == 64
    assert request_sha256(replace(first, seed=5, plan_hash="e" * 64)) == request_sha256(first)
    strided = np.zeros((48, 144, 3), np.uint8)[:, ::2]
    assert request_sha256(replace(first, image=strided)) == request_sha256(first)


def changed(which: str) -> GenerateRequest:
    request = good()
    robot = request.robot
    v, u = np.argwhere(robot.mask[1])[0]
    if which == "image":
        image = request.image.copy()
        image[3, 4, 1] = 1
        return replace(request, image=image)
    if which == "depth":
        depth = np.ones((48, 72), np.float32)
        depth[5, 6] = np.nan
        return replace(request, depth=depth)
    if which == "no depth":
        return replace(request, depth=None)
    if which == "point":
        xyz = robot.xyz.copy()
        xyz[1, v, u] *= np.float32(1.0001)
        return replace(request, robot=replace(robot, xyz=xyz))
    if which == "link":
        ids = robot.link_ids.copy()
        ids[1, v, u] = 4
        return replace(request, robot=replace(robot, link_ids=ids))
    if which == "colour":
        assert robot.rgb is not None
        rgb = robot.rgb.copy()
        rgb[1, v, u, 0] ^= 1
        return replace(request, robot=replace(robot, rgb=rgb))
    if which == "no colours":
        return replace(request, robot=replace(robot, rgb=None))
    if which == "times":
        return replace(request, robot=replace(robot, times=np.array([0.0, 0.1, 0.3])))
    moved = robot.camera.base_T_camera.copy()
    moved[0, 3] += 1e-6
    return replace(request, robot=replace(robot, camera=robot.camera.posed(moved)))


@pytest.mark.parametrize(
    "which", ["image", "depth", "no depth", "point", "link", "colour", "no colours", "times", "camera"]
)
def test_every_input_changes_the_hash(which: str) -> None:
    assert request_sha256(changed(which)) != request_sha256(good())


def test_commands_change_the_hash_and_requests_without_them_keep_theirs(yam: Robot) -> None:
    assert request_sha256(good()) == KNOWN
    q = np.tile(yam.home_position(), (2, 1))
    held = CommandedMotion(yam, JointTrajectory(yam.joint_names, np.array([0.0, 1.0]), q))
    q[1, 0] += 0.01
    moved = CommandedMotion(yam, JointTrajectory(yam.joint_names, np.array([0.0, 1.0]), q))
    found = {request_sha256(replace(good(), motion=motion)) for motion in (None, held, moved)}
    assert len(found) == 3
