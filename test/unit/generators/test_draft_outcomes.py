from __future__ import annotations

import numpy as np
import pytest

from kinema4d_ros.core.errors import KinemaError
from kinema4d_ros.core.pointmap import GripTrack
from kinema4d_ros.core.task import make_task
from kinema4d_ros.core.transforms import axis_angle, make
from kinema4d_ros.generators.draft.outcomes import cluster_outcomes, smoothed, success_share
from kinema4d_ros.generators.draft.scene import Estimate, FittedObject, FittedScene
from kinema4d_ros.physics.ensemble import Contact, MemberRun

TIMES = np.linspace(0.0, 1.0, 5)
SIZE = (0.04, 0.04, 0.05)


def scene_of(count: int, held: bool = False) -> FittedScene:
    mask = np.zeros((2, 2), dtype=bool)
    one = Estimate("box", SIZE, make(None, [0.3, 0.0, 0.025]))
    return FittedScene(
        tuple(FittedObject(f"object_{i}", mask, (one,), 0.1, "measured", held) for i in range(1, count + 1)), 0.0
    )


def path(*heights: float, x: float = 0.0, tilt: float = 0.0) -> np.ndarray:
    """Poses (5, 4, 4) with these heights above the start, moved along x and tilted evenly."""
    steps = np.linspace(0.0, 1.0, 5)
    return np.stack(
        [
            make(None, [0.3 + x * s, 0.0, 0.025 + h]) @ axis_angle([1.0, 0.0, 0.0], tilt * s)
            for s, h in zip(steps, heights or (0.0,) * 5, strict=True)
        ]
    )


def run_of(*paths: np.ndarray, contacts: tuple[Contact, ...] = ()) -> MemberRun:
    return MemberRun(TIMES, np.stack(paths, axis=1), np.zeros((5, 7)), contacts, True)


UP, SLIP = (0.0, 0.02, 0.05, 0.08, 0.10), (0.0, 0.02, 0.05, 0.0, 0.0)


def grip_along(heights: tuple[float, ...], width: float = 0.03) -> GripTrack:
    poses = np.stack([make(None, [0.3, 0.0, 0.025 + h]) for h in heights])
    return GripTrack(poses, np.full(5, width))


def test_lifted_and_slipping_members_are_two_outcomes_with_their_shares() -> None:
    touch = Contact(0.4, "object_1", "left_finger")
    rest = Contact(0.0, "object_1", "table")
    runs = [run_of(path(*UP), path(), contacts=(rest, touch))] * 5 + [run_of(path(*SLIP), path())] * 3
    lifted, slips = cluster_outcomes(runs, scene_of(2), grip_along(UP))
    assert (lifted.probability, lifted.label, lifted.members) == (0.625, "object_1 lifted", (0, 1, 2, 3, 4))
    assert (slips.probability, slips.label) == (0.375, "object_1 slips out")
    assert lifted.fates[0].gripped
    assert not slips.fates[0].gripped
    assert lifted.events == (touch,)
    assert success_share(runs, scene_of(2), make_task("pick", "object_1")) == lifted.probability


@pytest.mark.parametrize(
    ("made", "label"),
    [
        (path(), "nothing moves"),
        (path(x=0.002), "nothing moves"),
        (path(x=0.012), "object_1 pushed 12 mm"),
        (path(x=0.046), "object_1 pushed 46 mm"),
        (path(tilt=np.pi / 2), "object_1 topples"),
        (path(0.0, 0.0, -0.1, -0.4, -0.7), "object_1 falls off the table"),
        (path(0.0, 0.05, 0.06, 0.05, 0.002, x=0.2), "object_1 slips out"),
    ],
)
def test_labels_without_a_gripper(made: np.ndarray, label: str) -> None:
    (outcome,) = cluster_outcomes([run_of(made)] * 2, scene_of(1), None)
    assert outcome.label == label
    assert outcome.probability == 1.0


def test_object_lowered_in_the_gripper_is_put_down() -> None:
    heights = (0.0, 0.06, 0.06, 0.001, 0.001)
    (outcome,) = cluster_outcomes([run_of(path(*heights))], scene_of(1), grip_along(heights))
    assert outcome.label == "object_1 put down 0 mm away"


def test_held_object_stays_in_the_gripper_or_slips_out() -> None:
    still, falls = (0.0,) * 5, (0.0, -0.05, -0.2, -0.2, -0.2)
    outcomes = cluster_outcomes([run_of(path(*still)), run_of(path(*falls))], scene_of(1, held=True), grip_along(still))
    assert {one.label for one in outcomes} == {"object_1 stays in the gripper", "object_1 slips out"}


def test_nudged_neighbours_do_not_split_an_outcome() -> None:
    runs = [run_of(path(*UP), path(x=x)) for x in (0.0, 0.008, 0.015, 0.02)]
    (outcome,) = cluster_outcomes(runs, scene_of(2), None)
    assert outcome.label == "object_1 lifted"
    assert outcome.representative in (1, 2)


def test_weights_and_medoid() -> None:
    runs = [run_of(path(x=x)) for x in (0.05, 0.06, 0.12)] + [run_of(path())]
    pushed, still = cluster_outcomes(runs, scene_of(1), None, weights=[1.0, 1.0, 1.0, 1.0])
    assert pushed.representative == 1
    assert pushed.label == "object_1 pushed 60 mm"
    first, _ = cluster_outcomes(runs, scene_of(1), None, weights=[0.1, 0.1, 0.1, 3.0])
    assert first.label == still.label == "nothing moves"
    assert first.probability == pytest.approx(3.0 / 3.3)


def test_few_members_are_not_certainty() -> None:
    assert smoothed(1.0, 8) == pytest.approx(8.5 / 9)
    assert smoothed(0.0, 8) == pytest.approx(0.5 / 9)
    assert smoothed(0.5, 8) == 0.5
    assert smoothed(1.0, 800) > 0.999
    with pytest.raises(KinemaError, match="share"):
        smoothed(1.2, 8)


def test_runs_that_do_not_fit_are_refused() -> None:
    with pytest.raises(KinemaError, match="0 runs"):
        cluster_outcomes([], scene_of(1), None)
    with pytest.raises(KinemaError, match="2 objects"):
        cluster_outcomes([run_of(path(), path())], scene_of(1), None)
    with pytest.raises(KinemaError, match="the target is"):
        success_share([run_of(path())], scene_of(1), make_task("pick", "mug"))
