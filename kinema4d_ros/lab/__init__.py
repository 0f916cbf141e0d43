"""The MuJoCo lab: a simulation of arm, camera, table and objects with ground truth; headless and seeded.

make_scenario ─> LabSimulation ─> state, follow, step
LabCamera: images of its states, with depth and segmentation
LabProfile: physics and camera faults, constant or drawn for every scene
pick_plan, place_plan, push_plan: scripted joint trajectories
"""

from kinema4d_ros.lab.materials import Style
from kinema4d_ros.lab.picture import FULL, SMALL, LabCamera, LabImage, Quality
from kinema4d_ros.lab.profile import LabProfile, SceneConstants, load_profile, profile_names
from kinema4d_ros.lab.scenario import Scenario, ScenarioError, make_scenario, scenario_names
from kinema4d_ros.lab.scripted import home_plan, pick_and_place_plan, pick_plan, place_plan, push_plan
from kinema4d_ros.lab.sensor import Sensor
from kinema4d_ros.lab.simulation import LabSimulation, LabState
from kinema4d_ros.physics.model import Room
from kinema4d_ros.physics.objects import LabObject, PlacedObject

__all__ = [
    "FULL",
    "SMALL",
    "LabCamera",
    "LabImage",
    "LabObject",
    "LabProfile",
    "LabSimulation",
    "LabState",
    "PlacedObject",
    "Quality",
    "Room",
    "Scenario",
    "ScenarioError",
    "SceneConstants",
    "Sensor",
    "Style",
    "home_plan",
    "load_profile",
    "make_scenario",
    "pick_and_place_plan",
    "pick_plan",
    "place_plan",
    "profile_names",
    "push_plan",
    "scenario_names",
]
