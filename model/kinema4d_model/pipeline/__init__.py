"""From a request to a rollout: inputs, the denoising pipeline, chunks, the blend of two worlds, metres, confidence.

backend ─> session (chunks) ─> inputs ─> kinema_pipeline (encode, sample, decode) ─> metric, blend ─> Rollout
"""
