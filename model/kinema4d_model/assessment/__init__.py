"""How good a trained model is on episodes it has never seen, beside what needs no learning.

episodes ─> predictors (first frame, composite, carry, the model) ─> scores: pictures, clouds, outcome ─> report
twins of episodes (target moved, target gone) ────────────────────> does the prediction change as the physics does?
"""
