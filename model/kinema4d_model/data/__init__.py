"""Episodes for training and evaluation: format, shards, lab generator, importers, validator.

lab/ (physics, images) ─> make ──────┐
Robo4D-200k, LeRobot, bags ─> import ┼─> episodes in shards ─> check, stats, sheet
real video ─> lifter (depth) ────────┘         └─> training, assessment

episode.py        the `Episode` dataclass      shards.py          tar files and their index
episode_files.py  JSON and lossless videos     dataset_folder.py  splits, configuration, locks
"""
