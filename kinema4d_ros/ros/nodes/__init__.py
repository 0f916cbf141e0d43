"""The ROS 2 nodes: thin. They take messages, call the library and publish what comes back.

    twin  preview  generator  playback  gate  lab  viewer  recorder

Each module has `main`; `kinema4d_ros.ros.graph` says which run together.
"""
