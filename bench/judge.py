"""Accuracy of the geometric judge: its verdicts on lab episodes against the simulated outcomes.

    python bench/judge.py runs/data/nano --split val              every episode, every condition
    python bench/judge.py runs/data/nano --split val --limit 40   the first 40 episodes

    true     the camera's images, with the target's pixels given
    found    the same, but the judge finds the target itself
    drawn    the commanded robot rendered over the images, as in every generated rollout
    faded    drawn, and the object half transparent in colour and depth, blurred by 1 px, with noise
    gone     drawn, and the object removed after the first frame: "cannot tell" is the only correct verdict

Tasks: pick and push, by the limits of `kinema4d_ros.core.task`. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import cv2
import numpy as np

from kinema4d_model.data.dataset_folder import DatasetFolder
from kinema4d_model.data.episode import Episode, points_from_depth
from kinema4d_model.data.shards import open_index, read_episode
from kinema4d_ros.core.errors import KinemaError
from kinema4d_ros.core.rollout import Provenance, Rollout
from kinema4d_ros.core.task import make_task
from kinema4d_ros.evaluation import Confusion, GeometricJudge, TruthJudge, judge_track
from kinema4d_ros.evaluation.tracking import scene_without

GOALS = {"lifted": make_task("pick"), "pushed": make_task("push")}
CONDITIONS = ("true", "found", "drawn", "faded", "gone")
STREAMS = ("depth", "ids", "condition_ids")


def as_seen(episode: Episode) -> Rollout:
    return Rollout(
        episode.rgb, episode.points(), episode.robot_mask, episode.camera, episode.times, Provenance("camera")
    )


def drawn(episode: Episode, rgb: np.ndarray, depth_m: np.ndarray) -> Rollout:
    """Render the commanded robot over images and depth."""
    robot = episode.robot_condition()
    mask = np.ascontiguousarray(robot.mask)
    xyz = np.where(mask[..., None], robot.xyz, points_from_depth(depth_m, episode.camera)).astype(np.float32)
    pictures = np.where(mask[..., None], robot.rgb, rgb).astype(np.uint8)
    return Rollout(pictures, xyz, mask, episode.camera, episode.times, Provenance("drawn"))


def faded(episode: Episode, opacity: float, seed: int) -> Rollout:
    """Blend the target with the background, then add blur and noise; the first frame is unchanged."""
    rng = np.random.default_rng(seed)
    target = episode.object_mask(episode.outcome.target)
    scene = scene_without(episode.rgb, episode.points(), episode.robot_mask, target[0], episode.camera)
    rgb, depth = episode.rgb.astype(np.float32), episode.depth_m.copy()
    for t in range(1, len(rgb)):
        m = target[t]
        behind = np.where(np.isfinite(scene.depth_m), scene.depth_m, depth[t])
        rgb[t][m] = opacity * rgb[t][m] + (1 - opacity) * scene.rgb[m]
        depth[t][m] = opacity * depth[t][m] + (1 - opacity) * behind[m]
        far = float(np.nanmax(depth[t]))
        rgb[t] = cv2.GaussianBlur(rgb[t], (0, 0), 1.0) + rng.normal(0, 4, rgb[t].shape)
        depth[t] = cv2.GaussianBlur(np.nan_to_num(depth[t], nan=far), (0, 0), 1.0)
        depth[t] += rng.normal(0, 0.001, depth[t].shape).astype(np.float32)
    return drawn(episode, np.clip(rgb, 0, 255), depth)


def rollout_of(episode: Episode, condition: str, seed: int) -> Rollout:
    if condition in ("true", "found"):
        return as_seen(episode)
    if condition == "drawn":
        return drawn(episode, episode.rgb, episode.depth_m)
    return faded(episode, 0.5 if condition == "faded" else 0.0, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--split", default="val")
    parser.add_argument("--limit", type=int, default=10**9)
    parser.add_argument("--conditions", default=",".join(CONDITIONS))
    arguments = parser.parse_args()
    judge = GeometricJudge()
    verdicts = {(c, g): ([], [], []) for c in arguments.conditions.split(",") for g in GOALS}
    spent_s, judged, seed = 0.0, 0, 0
    for shard in DatasetFolder.open(arguments.dataset).shards(arguments.split):
        index = open_index(shard)
        for number in range(len(index.episodes)):
            if seed >= arguments.limit:
                break
            seed += 1
            episode = read_episode(index, number, STREAMS)
            for condition in arguments.conditions.split(","):
                rollout = rollout_of(episode, condition, seed)
                target = None if condition == "found" else episode.object_mask(episode.outcome.target)[0]
                begun = time.process_time()
                track = None
                try:
                    track = judge.judge(rollout, GOALS["lifted"], target).track
                except KinemaError as error:
                    print(f"{episode.key} {condition}: {error}")
                spent_s += time.process_time() - begun
                judged += 1
                for name, task in GOALS.items():
                    verdict = None if track is None else judge_track(track, task)
                    truth = bool(TruthJudge.of_episode(episode).judge(None, task).success)
                    row = (verdict and verdict.success, truth, verdict.confidence if verdict else 0.0)
                    for column, value in zip(verdicts[condition, name], row, strict=True):
                        column.append(value)
    summary: dict[str, object] = {}
    for (condition, name), (answers, truths, sure) in verdicts.items():
        table = Confusion.of(answers, truths)
        right = [s for a, t, s in zip(answers, truths, sure, strict=True) if a == t]
        wrong = [s for a, t, s in zip(answers, truths, sure, strict=True) if a is not None and a != t]
        print(f"\n{condition}, {name}: {table.total} episodes, agreement {table.agreement:.4f}")
        print(table.table())
        print(f"confidence when right {np.mean(right or [np.nan]):.2f}, when wrong {np.mean(wrong or [np.nan]):.2f}")
        summary[f"{condition}_{name}"] = {
            "episodes": table.total,
            "agreement": round(table.agreement, 4),
            "false_success": table.false_success,
            "false_failure": table.false_failure,
            "cannot_tell": table.unknown,
        }
    summary["cpu_ms_a_verdict"] = round(1e3 * spent_s / max(judged, 1), 1)
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
