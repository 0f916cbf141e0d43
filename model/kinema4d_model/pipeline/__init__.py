"""From a request to a rollout: inputs, denoising pipeline, chunks, blending, metric scale, confidence.

backend ─> session (chunks) ─> inputs ─> kinema_pipeline (encode, sample, decode) ─> metric, blend ─> Rollout
"""
