"""Accuracy of robot segmentation without weights, on images with ground truth, against plain OpenCV.

    python bench/segmentation.py            12 rooms, minutes on one core
    python bench/segmentation.py --quick    one room, six images: a smoke test

Images of the lab at 720 x 480: random table, lamp, camera, lens, objects and joint positions; every image has its own
colour and gradient of light (up to 20 %) and noise of 4 steps of 255. Half of the scenes are cluttered. Each room has
12 images, of which the first three are measured: IoU with the robot's true pixels.

background: one image of the empty scene. prompt: the robot as rendered by a camera 2 cm and 2 degrees off. median: no
empty scene, the median of the 12 images instead. rendered: rendered by the true camera. mog2: peer of background,
OpenCV's BackgroundSubtractorMOG2 with shadow detection, trained on ten images of the empty scene in ten lights (ours
has one), opened and closed. grabcut_box: peer of prompt, OpenCV's GrabCut from the box around the prompt, five rounds,
as in its tutorial.

The last line is JSON; `ratio` is our mean IoU over the peer's from the same inputs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "test"))

from support.seen_robot import random_camera, random_joints

from kinema4d_ros.calibration.pose_estimate import changed
from kinema4d_ros.calibration.silhouette import mask_iou
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.lab import LabSimulation
from kinema4d_ros.lab.materials import Style
from kinema4d_ros.lab.picture import SMALL, LabCamera
from kinema4d_ros.robot import Robot
from kinema4d_ros.segmentation import ClassicalSegmenter, Prompt, rendered_masks

SIZE = (720, 480)
PICTURES, MEASURED = 12, 3
LEAST = 0.01
"""Smallest share of the image that the robot covers in a measured image; other rooms are drawn again."""


class Room:
    """Render images of one room, their ground truth, the empty scene and a rough prompt."""

    def __init__(self, robot: Robot, seed: int, pictures: int = PICTURES) -> None:
        rng = np.random.default_rng([seed, 77])
        while True:
            camera = random_camera(rng, *SIZE)
            x, y, _ = camera.base_T_camera[:3, 3]
            q = random_joints(robot, rng, pictures)
            self.rendered = rendered_masks(robot, q, camera)
            if x > -0.3 and y < 0.5 and self.rendered[:MEASURED].mean(axis=(1, 2)).min() > LEAST:
                break
        lab = LabSimulation(("canonical", "cluttered")[seed % 2], seed, robot, camera)
        eye = LabCamera(robot, camera, room=lab.room, style=Style.varied(seed), quality=SMALL)
        state = lab.state()
        images, truth = [], []
        for positions, links in zip(q, forward_all(robot, q), strict=True):
            taken = eye.capture(replace(state, positions=positions, base_T_link=links), truth=True)
            images.append(light(taken.rgb, rng))
            truth.append(np.isin(taken.segmentation, [1 + taken.names.index(link.name) for link in robot.links]))
        away = state.base_T_link.copy()
        away[:, 2, 3] -= 50.0
        self.images, self.truth = np.stack(images), np.stack(truth)[:MEASURED]
        empty = eye.capture(replace(state, base_T_link=away)).rgb
        self.empties = [light(empty, rng) for _ in range(10)]
        shift, turn = (v / np.linalg.norm(v) for v in rng.normal(size=(2, 3)))
        rough = changed(camera.base_T_camera, np.concatenate([0.02 * shift, np.radians(2.0) * turn]))
        self.prompt = rendered_masks(robot, q, camera.posed(rough))


def light(rgb: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Add a random colour and gradient of light, and noise."""
    y, x = np.mgrid[-1 : 1 : rgb.shape[0] * 1j, -1 : 1 : rgb.shape[1] * 1j]
    gain = 1 + rng.uniform(-0.1, 0.1, 3) + (0.1 * rng.uniform(-1, 1) * x + 0.1 * rng.uniform(-1, 1) * y)[..., None]
    return np.clip(np.rint(rgb * gain + rng.normal(0, 4, rgb.shape)), 0, 255).astype(np.uint8)


def mog2(room: Room) -> np.ndarray:
    """Segment with OpenCV's background subtraction; its value 127 marks shadow."""
    out = []
    for image in room.images[:MEASURED]:
        subtractor = cv2.createBackgroundSubtractorMOG2(detectShadows=True)
        for empty in room.empties:
            subtractor.apply(empty)
        found = (subtractor.apply(image, learningRate=0) == 255).astype(np.uint8)
        found = cv2.morphologyEx(found, cv2.MORPH_OPEN, np.ones((3, 3), np.uint8))
        out.append(cv2.morphologyEx(found, cv2.MORPH_CLOSE, np.ones((9, 9), np.uint8)) > 0)
    return np.stack(out)


def grabcut_box(room: Room) -> np.ndarray:
    """Segment with OpenCV's GrabCut from a box."""
    out = []
    for image, prompt in zip(room.images[:MEASURED], room.prompt, strict=False):
        labels = np.zeros(prompt.shape, np.uint8)
        box = cv2.boundingRect(prompt.astype(np.uint8))
        cv2.setRNGSeed(0)
        cv2.grabCut(image, labels, box, np.zeros((1, 65)), np.zeros((1, 65)), 5, cv2.GC_INIT_WITH_RECT)
        out.append((labels == cv2.GC_FGD) | (labels == cv2.GC_PR_FGD))
    return np.stack(out)


def ours(room: Room, *, background: bool, prompt: bool, median: bool = False) -> np.ndarray:
    """Compute the masks of the measured images."""
    segmenter = ClassicalSegmenter(room.empties[0] if background else None)
    if median:
        return segmenter.segment(room.images, Prompt(mask=room.prompt) if prompt else None).masks[:MEASURED]
    hints = [Prompt(mask=mask) if prompt else None for mask in room.prompt[:MEASURED]]
    return np.stack([segmenter.segment(i, h).masks for i, h in zip(room.images[:MEASURED], hints, strict=True)])


CASES = {
    "background": lambda room: ours(room, background=True, prompt=False),
    "background_and_prompt": lambda room: ours(room, background=True, prompt=True),
    "prompt": lambda room: ours(room, background=False, prompt=True),
    "median": lambda room: ours(room, background=False, prompt=False, median=True),
    "median_and_prompt": lambda room: ours(room, background=False, prompt=True, median=True),
    "rendered": lambda room: room.rendered[:MEASURED],
    "the_prompt_itself": lambda room: room.prompt[:MEASURED],
    "mog2": mog2,
    "grabcut_box": grabcut_box,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rooms", type=int, default=12)
    arguments = parser.parse_args()
    cv2.setNumThreads(1)
    robot = Robot.load("yam")
    rooms = 1 if arguments.quick else arguments.rooms
    iou: dict[str, list[float]] = {name: [] for name in CASES}
    spent = dict.fromkeys(CASES, 0.0)
    for seed in range(rooms):
        room = Room(robot, seed, 6 if arguments.quick else PICTURES)
        for name, find in CASES.items():
            started = time.process_time()
            masks = find(room)
            spent[name] += time.process_time() - started
            iou[name] += [mask_iou(a, b) for a, b in zip(masks, room.truth, strict=True)]
        print(f"room {seed}:", {name: round(float(np.mean(v[-MEASURED:])), 3) for name, v in iou.items()}, flush=True)
    table: dict[str, Any] = {
        name: {
            "mean": float(np.mean(v)),
            "median": float(np.median(v)),
            "worst": min(v),
            "cpu_s_a_room": spent[name] / rooms,
        }
        for name, v in iou.items()
    }
    ratio = {
        "background over mog2": table["background"]["mean"] / table["mog2"]["mean"],
        "prompt over grabcut_box": table["prompt"]["mean"] / table["grabcut_box"]["mean"],
    }
    print(json.dumps({"rooms": rooms, "pictures": MEASURED * rooms, **table, "ratio": ratio}))


if __name__ == "__main__":
    main()
