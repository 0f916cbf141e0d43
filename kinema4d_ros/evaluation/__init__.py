"""Evaluation of predictions and policies: metrics, judges, trials and their report.

images   ─> images        PSNR, SSIM, also of the dynamic region alone
clouds   ─> clouds        Chamfer, F-score, against the truth and from frame to frame
rollout  ─> tracking      path of the object ─> `Task` ─> judge: success, progress, confidence
verdicts ─> rates         agreement of a judge with the truth
policies ─> campaign      trials in the lab and in the models ─> summary ─> report
"""

from kinema4d_ros.core.errors import EvaluationError
from kinema4d_ros.core.task import AtGoal, Lifted, Predicate, PushedBy, Task
from kinema4d_ros.evaluation.clouds import CloudDistance, cloud_distance, consecutive_distances, frame_distances
from kinema4d_ros.evaluation.images import dynamic_region, psnr, psnr_overall, ssim
from kinema4d_ros.evaluation.judges import GeometricJudge, Judge, TruthJudge, Verdict, judge_track
from kinema4d_ros.evaluation.physical import Adherence, Plausibility, plausibility, robot_adherence
from kinema4d_ros.evaluation.pictures import verdict_picture
from kinema4d_ros.evaluation.rates import Confusion
from kinema4d_ros.evaluation.tracking import Track, track_object

__all__ = [
    "Adherence",
    "AtGoal",
    "CloudDistance",
    "Confusion",
    "EvaluationError",
    "GeometricJudge",
    "Judge",
    "Lifted",
    "Plausibility",
    "Predicate",
    "PushedBy",
    "Task",
    "Track",
    "TruthJudge",
    "Verdict",
    "cloud_distance",
    "consecutive_distances",
    "dynamic_region",
    "frame_distances",
    "judge_track",
    "plausibility",
    "psnr",
    "psnr_overall",
    "robot_adherence",
    "ssim",
    "track_object",
    "verdict_picture",
]
