"""ROS 2 nodes: thin wrappers that receive messages, call the library and publish the results.

    twin  preview  generator  playback  gate  lab  viewer  recorder  evaluation  arm

Each node module has a `main`; `kinema4d_ros.ros.graph` defines which nodes run together.
"""
