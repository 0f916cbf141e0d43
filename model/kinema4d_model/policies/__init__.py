"""Learned policies: a small Diffusion Policy of our own, and policies that LeRobot saved. Both speak the one protocol.

demonstrations ─> train.py ─> FOLDER (policy.json, weights.safetensors) ─> chunk_policy.py   kind `diffusion`
                  FOLDER of LeRobot (config.json, model.safetensors) ────> lerobot_policy.py kind `lerobot`
"""
