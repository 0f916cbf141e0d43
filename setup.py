"""The ament_python package: for colcon on a ROS machine and for pip in a virtual environment."""

from pathlib import Path

from setuptools import find_packages, setup

PACKAGE = "kinema4d_ros"
MODEL = "kinema4d_model"
ROOT = Path(__file__).resolve().parent
NODES = ("evaluation", "gate", "generator", "lab", "playback", "preview", "recorder", "rviz_marker", "twin", "viewer")


def requirements(name: str) -> list[str]:
    """Read the requirement lines of requirements/NAME.in."""
    lines = (ROOT / "requirements" / f"{name}.in").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def share(*folders: str) -> list[tuple[str, list[str]]]:
    """List data_files entries that install whole folders under share/kinema4d_ros."""
    entries = []
    for folder in folders:
        for directory in [ROOT / folder, *(p for p in (ROOT / folder).rglob("*") if p.is_dir())]:
            files = [str(p.relative_to(ROOT)) for p in sorted(directory.iterdir()) if p.is_file()]
            if files:
                entries.append((f"share/{PACKAGE}/{directory.relative_to(ROOT).as_posix()}", files))
    return entries


setup(
    name=PACKAGE,
    version="0.1.0",
    description="Real-robot digital-twin simulation with a generative 4D world model",
    license="Apache-2.0",
    maintainer="kinema4d_ros maintainers",
    maintainer_email="maintainers@kinema4d-ros.invalid",
    python_requires=">=3.10",
    packages=[
        *find_packages(include=[PACKAGE, f"{PACKAGE}.*"]),
        *find_packages("model", include=[MODEL, f"{MODEL}.*"]),
    ],
    package_dir={MODEL: f"model/{MODEL}"},
    package_data={PACKAGE: ["evaluation/report/templates/*"], MODEL: ["weights/**/*"]},
    install_requires=requirements("runtime"),
    extras_require={
        "ros": requirements("ros"),
        "model": ["torch", *requirements("model")],
        "test": requirements("test"),
        "bench": requirements("bench"),
        "yam": ["dreamscale-i2rt"],
        "cluster": ["ray"],
        "gym": ["gymnasium"],
        "open3d": ["open3d"],
        "rlds": ["tensorflow", "tensorflow-datasets"],
    },
    data_files=[
        ("share/ament_index/resource_index/packages", [f"resource/{PACKAGE}"]),
        (f"share/{PACKAGE}", ["package.xml"]),
        *share("urdf", "config", "calibration", "launch"),
    ],
    entry_points={
        "console_scripts": [
            "kinema4d = kinema4d_ros.cli:main",
            *(f"kinema4d_{node} = kinema4d_ros.ros.nodes.{node}:main" for node in NODES),
        ]
    },
    zip_safe=False,
)
