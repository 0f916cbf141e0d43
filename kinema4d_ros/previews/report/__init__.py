"""Plan report: predicted clearance, contacts, margins and motion, as numbers and as a plot.

Rollout + Robot + joint positions -> grasped, clearance, margins, motion -> PlanReport -> plot
"""

from kinema4d_ros.previews.report.clearance import Clearance, clearance_over_time, resting_links
from kinema4d_ros.previews.report.motion import Motion, MovedRegion, find_motion
from kinema4d_ros.previews.report.plan_report import (
    CONTACT_M,
    Margins,
    PlanReport,
    clearance_text,
    joint_margins,
    make_report,
    outcomes_text,
)
from kinema4d_ros.previews.report.plot import clearance_plot, robustness_svg

__all__ = [
    "CONTACT_M",
    "Clearance",
    "Margins",
    "Motion",
    "MovedRegion",
    "PlanReport",
    "clearance_over_time",
    "clearance_plot",
    "clearance_text",
    "find_motion",
    "joint_margins",
    "make_report",
    "outcomes_text",
    "resting_links",
    "robustness_svg",
]
