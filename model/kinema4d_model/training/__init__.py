"""Training: from episodes to weights that `ModelBundle.from_pretrained` opens.

episodes ─ examples.py ─> Example ─ fit_codec.py ─> codec
                             └──── encode.py ─────> latents/ (safetensors, bits)
                                                        │ latents.py
config.py ─> stages.py ─> loop.py (Trainer) <─ network_task.py ─ objective.py
                             │ optimisers.py, ema.py, randomness.py
                             └─> checkpoints.py, metrics_log.py, strips.py ─> export.py
"""
