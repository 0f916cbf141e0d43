"""Compare a policy's success in the lab with what a world model predicts for the same commands.

python examples/evaluate.py --policy expert:offset_m=0.03 --tables 2 --model composite

`kinema4d evaluate` does the same for many policies, with workers, resume and a report.
"""

import argparse

from kinema4d_ros import Robot, load_generator, read_camera
from kinema4d_ros.kinematics import choose_kinematics
from kinema4d_ros.policies.registry import make_policy
from kinema4d_ros.worlds import LabWorld, ModelWorld

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--policy", default="expert")
parser.add_argument("--model", default="composite")
parser.add_argument("--scenario", default="canonical")
parser.add_argument("--tables", type=int, default=2)
parser.add_argument("--frames", type=int, default=13)
options = parser.parse_args()

kinematics = choose_kinematics(Robot.load("yam"))
camera = read_camera("calibration/demo_lab.yaml").rectified().scaled(180, 120)
policy = make_policy(options.policy)
generator = load_generator(options.model)
agreed = 0
for seed in range(options.tables):
    lab = LabWorld.of(options.scenario, seed, camera, kinematics)
    model = ModelWorld(lab.scene, generator, kinematics, frames=options.frames)
    task = lab.task("pick")
    run = lab.run(policy, task, seed=seed)
    happened, predicted = run.verdict.success, model.run(run.commands, task, seed=seed).verdict.success
    agreed += happened == predicted
    print(f"table {seed}: lab {happened}, {options.model} {predicted}")
print(f"{agreed} of {options.tables} verdicts agree")
