"""The web page: live twin, predicted scene, report and buttons, in a browser.

server, guard ── viser server that accepts connections from its own page only
page ─────────── display (scene, panel), without ROS; `kinema4d_ros.ros.nodes.viewer` connects it to the graph
approval ─────── which actions are allowed on the newest plan
"""
