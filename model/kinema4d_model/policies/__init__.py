"""Learned policies: our small Diffusion Policy and saved LeRobot policies, with the same `Policy` protocol.

demonstrations ─> train.py ─> FOLDER (policy.json, weights.safetensors) ─> chunk_policy.py   kind `diffusion`
                  FOLDER of LeRobot (config.json, model.safetensors) ────> lerobot_policy.py kind `lerobot`
"""
