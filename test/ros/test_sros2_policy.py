"""The shipped SROS2 policy: exactly what the nodes use when they run, and only the gate may move the arm."""

from __future__ import annotations

import os
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from support.rights import Right, allowed, used
from support.ros_graph import DISCOVERY_S, ROOT, Graph, own_domain, wait_for
from support.sim_graph import START_S, running, small_camera

from kinema4d_ros.ros import names
from kinema4d_ros.ros.graph import SIM_ARGUMENTS, sim_graph

POLICY = ROOT / "config" / "sros2" / "kinema4d.policy.xml"
EVERY = {a.name: a.default for a in SIM_ARGUMENTS} | dict.fromkeys(("record", "evaluation", "moveit", "rviz"), "true")
NODES = tuple(spec.name for spec in sim_graph(EVERY))
REAL = {**EVERY, "lab": "false", "driver": "i2rt"}
ENCLAVES = {spec.enclave for values in (EVERY, REAL) for spec in sim_graph(values)}
ARM = {("publish", f"/{names.ARM_TRAJECTORY.name}"), ("call", f"/{names.FOLLOW_TRAJECTORY.name}")}
SOMETIMES: dict[str, set[Right]] = {
    **{name: {("subscribe", "/clock")} for name in (*NODES, "arm")},  # with use_sim_time
    # one of the two ways, by its parameter `controller`; a move_group is asked when there is one
    "gate": {("subscribe", "/clock"), ("request", "/move_group/get_parameters"), *ARM},
    "lab": {("subscribe", "/clock"), ("publish", "/clock")},
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_every_node_has_an_enclave_and_nobody_else() -> None:
    assert set(allowed(POLICY)) == ENCLAVES


def test_only_the_gate_may_move_the_arm() -> None:
    for enclave, rights in allowed(POLICY).items():
        may = {(what, name) for what, name in rights if what in ("publish", "call", "request")}
        matching = {right for right in ARM if any(what == right[0] and fnmatchcase(right[1], n) for what, n in may)}
        assert matching == (ARM if enclave == "/kinema4d/gate" else set()), enclave


def test_only_preview_offers_plans_and_only_page_and_menu_ask_for_approval() -> None:
    rights = allowed(POLICY)

    def who(right: Right) -> set[str]:
        return {enclave.rpartition("/")[2] for enclave, has in rights.items() if right in has}

    assert who(("publish", f"/{names.PREVIEWED_PLAN.name}")) == {"preview"}
    assert who(("request", f"/{names.APPROVE.name}")) == {"viewer", "rviz_marker"}
    assert who(("request", f"/{names.EXECUTE.name}")) == {"viewer", "rviz_marker"}
    assert who(("reply", f"/{names.EXECUTE.name}")) == {"gate"}
    assert who(("publish", f"/{names.MENU_FEEDBACK.name}")) == set(), "choices are a person's, in RViz"


def test_names_are_those_of_the_table() -> None:
    """A wildcard only where names are made at run time; nothing that the table does not have."""
    table = {e.name if e.name.startswith("/") else f"/{e.name}" for e in names.ENDPOINTS}
    own = {"/rosout", "/parameter_events", "/clock", f"/{names.lab_object_topic('*')}"}
    own |= {"/move_group/get_parameters"}
    for enclave, rights in allowed(POLICY).items():
        private = f"/{enclave.rpartition('/')[2]}/"
        assert {name for _, name in rights if not name.startswith(private)} <= table | own
        assert {what for what, name in rights if name.startswith(private)} == {"reply"}


def compare(node: str, uses: set[Right], *, both_ways: bool) -> list[str]:
    """Where policy and node differ, in words."""
    may = allowed(POLICY)[f"/kinema4d/{node}"]
    missing = [r for r in uses if not any(what == r[0] and fnmatchcase(r[1], name) for what, name in may)]
    unused = [
        r for r in may - SOMETIMES[node] if not any(what == r[0] and fnmatchcase(name, r[1]) for what, name in uses)
    ]
    return [f"{node} may not {what} {name}" for what, name in missing] + [
        f"{node} need not {what} {name}" for what, name in unused if both_ways
    ]


@pytest.mark.full
def test_the_policy_is_exactly_what_running_nodes_use(tmp_path: Path) -> None:
    camera = small_camera(tmp_path, 90, 60)
    parameters = {n: {"calibration": camera} for n in ("lab", "twin", "preview", "viewer", "evaluation")}
    parameters["viewer"] |= {"port": "0", "lab": "true"}
    parameters["recorder"] = {"folder": str(tmp_path)}
    with own_domain(), running(NODES, parameters):
        graph = Graph(1)
        try:
            observer = graph.node("observer")

            def differences() -> list[str]:
                return [d for node in NODES for d in compare(node, used(observer, node), both_ways=True)]

            wait_for(lambda: set(NODES) <= set(observer.get_node_names()), START_S, "every node to be found")
            try:
                wait_for(lambda: not differences(), DISCOVERY_S)
            except AssertionError:
                raise AssertionError("\n".join(differences())) from None
        finally:
            graph.close()


@pytest.mark.full
def test_the_gate_s_other_way_is_in_the_policy_too() -> None:
    with own_domain(), running(("gate",), {"gate": {"controller": "action"}}):
        graph = Graph(1)
        try:
            observer = graph.node("observer")
            action = ("call", f"/{names.FOLLOW_TRAJECTORY.name}")
            wait_for(
                lambda: "gate" in observer.get_node_names() and action in used(observer, "gate"), START_S, "the way"
            )
            assert compare("gate", used(observer, "gate"), both_ways=False) == []
        finally:
            graph.close()


@pytest.mark.full
def test_the_real_arm_uses_what_its_policy_allows() -> None:
    parameters = {"driver": "support.fake_arm:FakeArm", "enable_motion": True}
    with own_domain(), running(("arm",), {"arm": parameters}):
        graph = Graph(1)
        try:
            observer = graph.node("observer")

            def differences() -> list[str]:
                return compare("arm", used(observer, "arm"), both_ways=True)

            wait_for(lambda: "arm" in observer.get_node_names() and not differences(), START_S, "the arm's endpoints")
        finally:
            graph.close()


# Permissive without keys is ROS's own way to say "unprotected will do".
@pytest.mark.full
@pytest.mark.parametrize(
    ("keystore", "strategy"),
    [("none", "Enforce"), ("empty", "Enforce"), ("forged", "Enforce"), ("forged", "Permissive")],
)
def test_security_that_cannot_be_had_stops_the_node_in_words(tmp_path: Path, keystore: str, strategy: str) -> None:
    """DDS from PyPI has no security: with it switched on a node must not run unprotected."""
    environment = {**os.environ, "ROS_SECURITY_ENABLE": "true", "ROS_SECURITY_STRATEGY": strategy}
    environment.pop("ROS_SECURITY_KEYSTORE", None)
    enclave = tmp_path / "enclaves" / "kinema4d" / "playback"
    if keystore != "none":
        environment["ROS_SECURITY_KEYSTORE"] = str(tmp_path)
        enclave.mkdir(parents=True)
    if keystore == "forged":
        for file in ("identity_ca.cert.pem", "cert.pem", "key.pem", "permissions_ca.cert.pem", "governance.p7s"):
            (enclave / file).write_text("not a certificate")
        (enclave / "permissions.p7s").write_text("not a signature")
    node = [sys.executable, "-m", "kinema4d_ros.ros.nodes.playback", "--ros-args", "--enclave", "/kinema4d/playback"]
    done = subprocess.run(node, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    said = done.stdout + done.stderr
    if done.returncode == 0 or "ready" in said:
        raise AssertionError(f"it runs unprotected:\n{said}")
    assert done.returncode == 2
    assert "ROS security is enabled and failed" in said
    assert "config/sros2/README.md" in said
    assert "Traceback" not in said
