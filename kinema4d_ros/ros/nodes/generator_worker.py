"""Worker process of the generator: receives serialised GenerateRollout goals and returns serialised results."""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
import time

from rclpy.serialization import deserialize_message, serialize_message

from kinema4d_msgs.action import GenerateRollout
from kinema4d_ros.generators import Generator, Progress, load_generator
from kinema4d_ros.robot.model import Robot
from kinema4d_ros.ros.messages.request import request_from_goal
from kinema4d_ros.ros.messages.rollout import rollout_to_msg
from kinema4d_ros.runtime import Job, serve

__all__ = ["main"]

# Spinning OpenMP threads take the cores from the rest of the graph; torch reads this variable when it is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


class Handler:
    """Goal handler with one generator that is loaded once.

    Args:
        generator: of the rollouts.
        robot: for which commands are accepted; never taken from a goal. None accepts none.
    """

    def __init__(self, generator: Generator, robot: Robot | None = None) -> None:
        self._generator, self._robot = generator, robot

    def __call__(self, payload: bytes, job: Job) -> bytes:
        """Generate the rollout of a serialised goal and return the serialised result."""
        started = time.monotonic()
        job.progress("decode")
        goal = deserialize_message(payload, GenerateRollout.Goal)
        request = request_from_goal(goal, self._robot)
        decoded = time.monotonic()

        def report(progress: Progress) -> None:
            job.progress(progress.phase, progress.step, progress.steps)

        rollout = self._generator.generate(request, report, job.cancelled)
        generated = time.monotonic()
        job.progress("encode")
        result = GenerateRollout.Result(rollout=rollout_to_msg(rollout, goal.image.header.stamp))
        result.load_s = decoded - started
        result.generate_s = generated - decoded
        result.encode_s = time.monotonic() - generated
        result.peak_memory_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return bytes(serialize_message(result))


def main() -> int:
    """Serve on the socket that the generator node passes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("descriptor", type=int)
    parser.add_argument("spec", help="generator spec, from the node's parameters")
    parser.add_argument("options", type=json.loads)
    parser.add_argument("robot", help="robot whose commands are accepted, from the node's parameters")
    arguments = parser.parse_args()
    # Ctrl-C reaches every process of a terminal; the node decides when its worker stops.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def load() -> Handler:
        return Handler(load_generator(arguments.spec, **arguments.options), Robot.load(arguments.robot))

    return serve(arguments.descriptor, load)


if __name__ == "__main__":
    sys.exit(main())
