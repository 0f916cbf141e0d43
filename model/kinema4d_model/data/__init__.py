"""Data for training and judging: episodes, shards, a generator of them, importers, a validator.

    lab/ (physics, pictures) ─> make ────┐
    Robo4D-200k, LeRobot, bags ─> import ┼─> episodes in shards ─> check, stats, sheet
    real video ─> lifter (depth) ────────┘         └─> dataset.py (torch) ─> training

    episode.py        what an episode is            shards.py      tar files and their index
    episode_files.py  as JSON and lossless videos   dataset_folder.py  splits, configuration, locks

Everything but `dataset.py` works without torch.
"""
