"""Check of what a generator delivers while it works."""

from __future__ import annotations

import numpy as np

from kinema4d_ros.core.rollout import Frames, Rollout
from kinema4d_ros.generators import GenerateRequest, Generator, ReadyFrames, stream_frames


def same(a: Frames, b: Frames) -> bool:
    """Whether two ranges of frames are equal in every bit."""
    return all(x.tobytes() == y.tobytes() for x, y in zip(a.arrays, b.arrays, strict=True))


def check_stream(generator: Generator, request: GenerateRequest) -> tuple[list[tuple[str, bool]], Rollout]:
    """Stream a request, and check the frames against the rollout, and the rollout against that of `generate`.

    Returns the distinct stages in their order, each with whether its frames were final.
    """
    last: dict[int, tuple[bool, Frames]] = {}
    stages: list[tuple[str, bool]] = []

    def receive(ready: ReadyFrames) -> None:
        assert not any(array.flags.writeable for array in ready.frames.arrays)
        if (ready.stage, ready.final) not in stages:
            stages.append((ready.stage, ready.final))
        for i in range(len(ready.frames)):
            t, frame = ready.start + i, ready.frames[i : i + 1]
            assert not last.get(t, (False,))[0], "a final frame is delivered again"
            last[t] = ready.final, frame.copy()
            # The robot is exact in every stage.
            mask = frame.robot_mask[0]
            assert not (mask & ~request.robot.mask[t]).any()
            assert np.array_equal(frame.xyz[0][mask], request.robot.xyz[t][mask])

    made = stream_frames(generator, request, receive)
    assert sorted(last) == list(range(len(request)))
    for t, (final, frame) in last.items():
        assert final
        assert same(frame, made[t : t + 1])
    alone = generator.generate(request)
    assert same(made, alone)
    assert made.outcomes == alone.outcomes
    assert made.provenance.input_sha256 == alone.provenance.input_sha256
    return stages, made
