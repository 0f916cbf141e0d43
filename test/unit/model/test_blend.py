"""Tests of blending two exact videos: with the gate set by hand, the frames must equal one or the other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.scenes import cast_world

from kinema4d_model.checkpoints.bundle import ModelBundle
from kinema4d_model.pipeline.backend import DiffusionGenerator
from kinema4d_model.pipeline.blend import VIEW_M, Window, choose, choose_window, cut_request, predict_two_worlds
from kinema4d_model.pipeline.inputs import prepare_inputs, shrink_request
from kinema4d_model.pipeline.kinema_pipeline import KinemaPipeline
from kinema4d_model.preset import load_preset
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import Cancelled
from kinema4d_ros.core.pointmap import GripTrack
from kinema4d_ros.core.rollout import Frames
from kinema4d_ros.core.transforms import make
from kinema4d_ros.generators.carry import carried_frames, find_candidate
from kinema4d_ros.generators.composite import CompositeGenerator
from kinema4d_ros.generators.protocol import GenerateRequest
from kinema4d_ros.kinematics import choose_kinematics
from kinema4d_ros.lab.scripted import Motion
from kinema4d_ros.render import render_pointmaps
from kinema4d_ros.robot import Robot

WIDTH, HEIGHT, FRAMES = 240, 160, 31
SPOT = np.array([0.30, 0.0])


def view(width: int = WIDTH, height: int = HEIGHT, focal: float = 2.0) -> PinholeCamera:
    return PinholeCamera.look_at(
        (0.95, -0.45, 0.75), (0.3, 0.0, 0.05), width=width, height=height, focal_px=focal * width
    )


@pytest.fixture(scope="module")
def request_() -> GenerateRequest:
    """Make a request in which the YAM grasps a red box and lifts it; depth is measured."""
    return make_request(view())


def make_request(camera: PinholeCamera) -> GenerateRequest:
    robot = Robot.load("yam")
    kinematics = choose_kinematics(robot)
    motion = Motion(kinematics, robot.home_position())
    down = np.diag([1.0, -1.0, -1.0])
    motion.grip(0.08)
    motion.to_pose(make(down, np.array([*SPOT, 0.10])))
    motion.to_pose(make(down, np.array([*SPOT, 0.02])))
    motion.grip(0.03)
    motion.to_pose(make(down, np.array([*SPOT, 0.12])))
    drawn = render_pointmaps(robot, motion.trajectory().resample(FRAMES), camera, rgb=True)
    box = [([*SPOT, 0.025], (0.04, 0.04, 0.05))]
    xyz = cast_world(camera, box)
    image = np.full((camera.height, camera.width, 3), 130, np.uint8)
    image[xyz[..., 2] < cast_world(camera)[..., 2] - 1e-6] = (200, 40, 30)
    image[drawn.mask[0]] = 60
    depth = np.where(drawn.mask[0], drawn.xyz[0, ..., 2], xyz[..., 2]).astype(np.float32)
    return GenerateRequest(image, drawn, depth)


@pytest.fixture(scope="module")
def pipeline() -> KinemaPipeline:
    """Make a pipeline of nano's sizes with random weights; `answer` sets its output."""
    return KinemaPipeline(ModelBundle.from_preset("nano", seed=0), device="cpu").with_sampler(steps=1)


def answer(pipeline: KinemaPipeline, carried: float) -> None:
    """Make the network predict no rest, and this share of the carried world (0 or 1)."""
    out = pipeline.bundle.transformer.proj_out
    with torch.no_grad():
        out.weight.zero_()
        out.bias.zero_()
        # The gate is the last channel of every cell of a patch.
        out.bias.view(-1, pipeline.preset.transformer.out_channels + 1)[:, -1] = 40 * carried - 20


def carried_truth(request: GenerateRequest) -> Frames:
    generator = CompositeGenerator()
    world = generator.still_world(request)
    still = generator.compose(request, world)
    candidate = find_candidate(world, request.robot)
    assert candidate is not None
    assert request.robot.rgb is not None
    carried_frames(world, candidate, request.robot, request.robot.rgb, *still.arrays)
    return still


def test_gate_0_gives_the_composite(pipeline: KinemaPipeline, request_: GenerateRequest) -> None:
    answer(pipeline, 0.0)
    done = predict_two_worlds(pipeline, request_, 0, CompositeGenerator())
    still = CompositeGenerator().generate(request_)
    assert done.offered
    assert done.gate.max() < 1e-6
    assert np.array_equal(done.frames.rgb, still.rgb)
    assert np.array_equal(done.frames.xyz, still.xyz, equal_nan=True)
    assert np.array_equal(done.frames.robot_mask, still.robot_mask)
    assert len(done.frames) == FRAMES > pipeline.preset.frames
    assert len(done.prediction.rgb) == pipeline.preset.frames


def test_gate_1_gives_the_carried_world(pipeline: KinemaPipeline, request_: GenerateRequest) -> None:
    answer(pipeline, 1.0)
    done = predict_two_worlds(pipeline, request_, 0, CompositeGenerator())
    truth = carried_truth(request_)
    assert done.gate[-1] > 0.999
    assert np.array_equal(done.frames.rgb[-1], truth.rgb[-1])
    assert np.array_equal(done.frames.xyz[-1], truth.xyz[-1], equal_nan=True)
    assert np.array_equal(done.frames.robot_mask, truth.robot_mask)
    still = CompositeGenerator().generate(request_)
    assert not np.array_equal(done.frames.rgb[-1], still.rgb[-1])
    assert "carried to 100% at the end" in done.note


def test_latents_split_into_a_gate_and_a_rest(pipeline: KinemaPipeline, request_: GenerateRequest) -> None:
    preset = pipeline.preset
    window = choose_window(request_.camera, request_.robot.grip, preset.width / preset.height)
    small = shrink_request(cut_request(request_, window), preset.width, preset.height)
    inputs, _ = prepare_inputs(small, CompositeGenerator(quick_fill=True), preset.codec.temporal_factor)
    encoded = pipeline.encode(inputs, 0)
    base, carried = encoded.base_latents, encoded.prepared.carried
    assert base is not None
    assert carried is not None
    assert carried.abs().max() > 0.01
    choice = choose(pipeline, base + 0.7 * carried, encoded)
    moving = choice.gate > 0
    assert moving.any()
    assert not moving.all(), "before the fingers close there is nothing to choose"
    assert np.allclose(choice.gate[moving], 0.7, atol=1e-3)
    assert np.abs(choice.rgb).max() < 0.1
    assert np.abs(choice.values).max() < 1e-3
    other = torch.randn_like(base) * 0.05
    told = choose(pipeline, base + other, encoded)
    assert np.abs(told.rgb).mean() > 0.1


def test_a_random_network_keeps_the_robot_and_pixels_outside_the_window(request_: GenerateRequest) -> None:
    far = make_request(view(focal=0.9))
    generator = DiffusionGenerator(preset="nano", random_weights=True, sampler={"steps": 1}, device="cpu")
    rollout = generator.generate(far)
    rollout.check_points()
    still = CompositeGenerator().generate(far)
    window = choose_window(far.camera, far.robot.grip, 1.5)
    assert window.width < WIDTH
    outside = np.ones((HEIGHT, WIDTH), bool)
    outside[window.slices] = False
    assert np.array_equal(rollout.rgb[:, outside], still.rgb[:, outside])
    robot = rollout.robot_mask
    assert robot.sum() > 0.8 * far.robot.mask.sum()
    assert np.array_equal(rollout.xyz[robot], far.robot.xyz[robot])
    inside = ~outside & ~robot
    assert not np.array_equal(rollout.rgb[inside], still.rgb[inside])
    again = generator.generate(far)
    assert np.array_equal(again.rgb, rollout.rgb)


def test_without_depth_the_image_is_lifted(pipeline: KinemaPipeline, request_: GenerateRequest) -> None:
    flat = GenerateRequest(request_.image, request_.robot)
    generator = DiffusionGenerator(bundle=pipeline.bundle, sampler={"steps": 1}, device="cpu")
    rollout = generator.generate(flat)
    assert "depth lifted from the picture" in rollout.provenance.versions["frames"]
    without = DiffusionGenerator(bundle=pipeline.bundle, lift=False, device="cpu").generate(flat)
    assert "lifted" not in without.provenance.versions["frames"]


def test_the_window_is_centred_on_the_grasp() -> None:
    camera = view(640, 480, 0.9)
    poses = np.tile(np.diag([1.0, -1.0, -1.0, 1.0]), (4, 1, 1))
    poses[:, :3, 3] = [0.3, 0.1, 0.05]
    grip = GripTrack(poses, np.array([0.08, 0.08, 0.02, 0.02]))
    window = choose_window(camera, grip, 1.5)
    spot = camera.project((camera.camera_T_base @ poses[2, :, 3])[None, :3])[0]
    assert window.left < spot[0] < window.left + window.width
    assert window.top < spot[1] < window.top + window.height
    z = (camera.camera_T_base @ poses[2, :, 3])[2]
    assert window.width * z / camera.K[0, 0] == pytest.approx(VIEW_M, rel=0.01)
    assert window.width / window.height == pytest.approx(1.5, rel=0.02)
    for shift in ([5.0, 0, 0], [0, 3.0, 0], [0, 0, 9.0]):
        moved = poses.copy()
        moved[:, :3, 3] += shift
        w = choose_window(camera, GripTrack(moved, grip.width_m), 1.5)
        assert w.left >= 0
        assert w.top >= 0
        assert w.left + w.width <= 640
        assert w.top + w.height <= 480
    assert choose_window(camera, None, 4 / 3) == Window(0, 0, 640, 480)


def test_a_cropped_request_equals_that_of_a_smaller_camera(request_: GenerateRequest) -> None:
    window = Window(30, 20, 120, 80)
    cut = cut_request(request_, window)
    robot = render_pointmaps(Robot.load("yam"), np.stack([Robot.load("yam").home_position()]), cut.camera)
    whole = render_pointmaps(Robot.load("yam"), np.stack([Robot.load("yam").home_position()]), request_.camera)
    assert np.array_equal(robot.link_ids[0], whole.link_ids[0][window.slices])
    assert cut.depth is not None
    assert request_.depth is not None
    assert np.array_equal(cut.depth, request_.depth[window.slices])
    assert cut.robot.grip is request_.robot.grip


def test_prediction_can_be_cancelled(pipeline: KinemaPipeline, request_: GenerateRequest) -> None:
    phases: list[str] = []
    with pytest.raises(Cancelled):
        predict_two_worlds(
            pipeline, request_, 0, CompositeGenerator(), progress=lambda p: phases.append(p.phase),
            cancel=lambda: "sample" in phases,
        )  # fmt: skip
    assert "blend" not in phases


def test_the_carry_condition_needs_its_channels() -> None:
    preset = load_preset("nano")
    assert preset.condition.carry
    assert preset.transformer.in_channels == 3 * 48 + 4 + 20
