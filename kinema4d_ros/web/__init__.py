"""The web page: live twin, predicted world, report and the buttons around them, in a browser on this machine.

server ── a viser server that only its own page can speak to
page ──── what is shown (scene, panel), without ROS; `kinema4d_ros.ros.nodes.viewer` connects it to the graph
desk ──── what a person may do with the newest plan
"""
