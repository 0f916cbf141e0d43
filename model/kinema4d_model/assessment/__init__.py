"""Evaluation of a trained model on held-out episodes, compared with baselines that need no training.

episodes ─> predictors (first frame, composite, carry, the model) ─> scores: images, clouds, outcome ─> report
twins of episodes (target moved, target removed) ─────────────────> does the prediction follow the physics?
"""
