"""The evaluate action over real DDS: feedback, trials and results on topics, cancel, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from action_msgs.msg import GoalStatusArray
from rclpy.qos import qos_profile_action_status_default
from support.motions import WAIT_S
from support.ros_graph import Asker, Graph, own_domain, wait_for
from support.sim_graph import NodeProcess, running

from kinema4d_msgs.action import EvaluatePolicy
from kinema4d_msgs.msg import EvaluatedTrial
from kinema4d_ros.core.errors import ErrorCode, GeneratorError
from kinema4d_ros.evaluation.campaign import Campaign
from kinema4d_ros.evaluation.preflight import check_setup
from kinema4d_ros.evaluation.settings import EvaluationSettings
from kinema4d_ros.evaluation.store import TrialStore
from kinema4d_ros.ros import names
from kinema4d_ros.ros.qos import profile

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class Evaluations:
    """A client of the action that keeps what it hears."""

    def __init__(self, graph: Graph) -> None:
        self.node = graph.node("asker")
        self.feedback: list[Any] = []
        self.trials: list[Any] = []
        self.results: list[Any] = []
        for endpoint, kept in ((names.EVALUATED_TRIAL, self.trials), (names.EVALUATION_RESULT, self.results)):
            self.node.create_subscription(endpoint.interface(), endpoint.name, kept.append, profile(endpoint))
        self._asker = Asker(self.node, EvaluatePolicy, names.EVALUATE.name)
        self.result, self.cancel = self._asker.result, self._asker.cancel

    def send(self, **fields: Any) -> Any:
        goal = EvaluatePolicy.Goal(**{"task": "pick", "scenario": "canonical", "policy": "expert", **fields})
        return self._asker.send(goal, lambda m: self.feedback.append(m.feedback))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("evaluations")


@pytest.fixture(scope="module")
def nodes(folder: Path) -> Iterator[dict[str, NodeProcess]]:
    options = {"evaluation": {"folder": folder, "width": 96, "frames": 5}}
    with own_domain(), running(("generator", "evaluation"), options) as made:
        yield made


@pytest.fixture(scope="module")
def asker(nodes: dict[str, NodeProcess]) -> Iterator[Evaluations]:
    graph = Graph(threads=1)
    yield Evaluations(graph)
    graph.close()


def test_a_policy_is_judged_with_feedback_trials_and_a_report(asker: Evaluations, folder: Path) -> None:
    handle = asker.send(policy="far=expert:offset_m=0.08", episodes=2, seed=4)
    assert handle.accepted
    result = asker.result(handle)
    assert result.error.code == ErrorCode.NONE, result.error.message
    found = result.result
    assert (result.episodes, result.successes, found.episodes, found.failed) == (2, 0, 2, 0)
    assert found.lab_success_rate == 0.0
    assert 0.0 <= found.lab_interval_95[0] < found.lab_interval_95[1] < 1.0
    assert found.bias == 0.0
    assert found.model == "ros/open"
    assert [(f.episode, f.episodes) for f in asker.feedback] == [(1, 2), (2, 2)]
    wait_for(lambda: len(asker.trials) >= 2 and asker.results, WAIT_S, "trials and result on their topics")
    assert [(t.policy, t.seed, t.lab) for t in asker.trials] == [("far", 4, 0), ("far", 5, 0)]
    assert all(t.predicted != EvaluatedTrial.SUCCESS for t in asker.trials)
    assert asker.results[-1].report == found.report
    report = Path(found.report)
    assert report.parent == folder
    assert "far" in (report / "report.html").read_text()
    assert json.loads((report / "evaluation.json").read_text())["runs"] == 2


@pytest.mark.full
def test_one_goal_at_a_time_and_cancel_keeps_what_is_finished(asker: Evaluations) -> None:
    asker.feedback.clear()
    handle = asker.send(episodes=500, seed=10)
    assert handle.accepted
    assert not asker.send(episodes=1).accepted
    wait_for(lambda: asker.feedback, WAIT_S, "the first episode")
    asker.cancel(handle)
    result = asker.result(handle)
    assert result.error.code == ErrorCode.CANCELLED
    finished = len((Path(result.result.report) / "trials-0.jsonl").read_text().splitlines())
    assert 1 <= finished == result.result.episodes + result.result.failed < 500


@pytest.mark.full
def test_in_closed_loop_the_policy_acts_on_predicted_pictures(asker: Evaluations) -> None:
    result = asker.result(asker.send(policy="expert", episodes=1, seed=4, mode=EvaluatePolicy.Goal.CLOSED_LOOP))
    assert result.error.code == ErrorCode.NONE, result.error.message
    assert (result.result.model, result.result.episodes, result.result.failed) == ("ros/closed", 1, 0)
    record = json.loads((Path(result.result.report) / "trials-0.jsonl").read_text())
    assert record["lab"]["success"] is True
    assert record["models"]["ros/closed"]["chunks"] > 2
    assert record["models"]["ros/closed"]["made_by"] == "composite plane"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"policy": "python:os:system", "episodes": 1}, ErrorCode.POLICY_UNAVAILABLE),
        ({"policy": "remote:127.0.0.1:1", "episodes": 1}, ErrorCode.POLICY_UNAVAILABLE),
        ({"policy": "diffusion:runs/any", "episodes": 1}, ErrorCode.POLICY_UNAVAILABLE),
        ({"policy": "", "episodes": 1}, ErrorCode.POLICY_UNAVAILABLE),
        ({"scenario": "moon", "episodes": 1}, ErrorCode.ARGUMENT_INVALID),
        ({"task": "dance", "episodes": 1}, ErrorCode.ARGUMENT_INVALID),
        ({"episodes": 0}, ErrorCode.ARGUMENT_INVALID),
        ({"episodes": 4000000000}, ErrorCode.ARGUMENT_INVALID),
        ({"mode": 9, "episodes": 1}, ErrorCode.ARGUMENT_INVALID),
        ({"seed": 2**63, "episodes": 1}, ErrorCode.ARGUMENT_INVALID),
    ],
)
def test_goals_that_are_refused(asker: Evaluations, fields: dict[str, Any], code: ErrorCode) -> None:
    handle = asker.send(**fields)
    assert handle.accepted
    result = asker.result(handle)
    assert result.error.code == code
    assert "expected" in result.error.message


def test_a_policy_that_cannot_be_made_is_a_failed_run_and_no_more(asker: Evaluations) -> None:
    result = asker.result(asker.send(policy="replay:/nowhere/at_all.npz", episodes=1, seed=2))
    assert result.error.code == ErrorCode.NONE
    assert (result.result.episodes, result.result.failed) == (0, 1)
    wait_for(lambda: "nowhere" in asker.trials[-1].reason, WAIT_S, "the reason")
    assert asker.trials[-1].lab == EvaluatedTrial.UNKNOWN


@pytest.mark.full
def test_one_model_is_served_by_two_nodes_and_outlives_one_of_them(tmp_path: Path) -> None:
    """Two workers at two nodes; one node is killed and the other does its work, no trial is lost."""
    asked = EvaluationSettings(
        ["nod=python:support.odd_policies:Nod"],
        scenarios=["canonical"],
        runs=8,
        models=["ros:gpu1+ros:gpu2"],
        width=96,
        frames=5,
    )
    label = asked.labels()[0]
    goals: dict[str, set[bytes]] = {"gpu1": set(), "gpu2": set()}
    killed: list[int] = []
    with own_domain():
        nodes = {space: NodeProcess("generator", arguments=["-r", f"__ns:=/{space}"]) for space in goals}
        graph = Graph(threads=1)
        try:
            for node in nodes.values():
                node.wait_for_line("ready")
            watcher = graph.node("watcher")
            for space in goals:

                def note(message: Any, space: str = space) -> None:
                    goals[space].update(bytes(one.goal_info.goal_id.uuid) for one in message.status_list)

                topic = f"/{space}/{names.GENERATE.name}/_action/status"
                watcher.create_subscription(GoalStatusArray, topic, note, qos_profile_action_status_default)
            setup = check_setup(asked, find_s=WAIT_S)
            assert setup.notes == ()

            def progress(_record: Any, done: int, _total: int) -> None:
                if not killed and all(goals.values()):
                    nodes["gpu1"].kill()
                    killed.append(done)

            assert Campaign(asked, tmp_path / "out").run(workers=2, progress=progress) == 8
            assert killed, goals
            assert killed[0] < 8
            with_one = check_setup(asked, find_s=5.0)
            assert with_one.notes == ("no generator node answers in 'gpu1': the others do its work",)
        finally:
            graph.close()
            if not killed:
                nodes["gpu1"].stop()
            nodes["gpu2"].stop()
        with pytest.raises(GeneratorError, match=r"no generator node of 'ros:gpu1\+ros:gpu2' answers") as caught:
            check_setup(asked, find_s=1.0)
    assert caught.value.code is ErrorCode.GENERATOR_UNAVAILABLE
    records = TrialStore(tmp_path / "out").records().values()
    assert [record.models[label].error for record in records] == [""] * 8
    assert {record.models[label].made_by for record in records} == {"composite plane"}
    assert len(goals["gpu1"] | goals["gpu2"]) >= 8
