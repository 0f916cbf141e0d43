"""Policies on trial: the same tables in the lab and in world models, run by run, and what the difference says.

settings ─> campaign ─> workers ─> execute ─┬─> arena    the policy in the lab: the truth
                │                           └─> world    its commands, or the policy itself, in a model
                └─> store: one line a trial ─> summary ─> report
"""
