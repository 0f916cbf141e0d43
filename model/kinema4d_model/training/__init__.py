"""Training: from episodes to weights for `ModelBundle.from_pretrained`.

episodes ─ examples.py ─> Example ─ codec_task.py ─> codec
                             └──── latents.py ─────> latents/ (safetensors, bits)
                                                        │ latents.py
config.py ─> stages.py ─> loop.py (Trainer) <─ network_task.py
                             │ optimisers.py, randomness.py
                             └─> checkpoints.py, metrics_log.py ─> export.py
"""
