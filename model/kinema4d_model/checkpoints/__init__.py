"""Weights from files: official checkpoints, model folders, adapters, the hub; safetensors, every key checked."""
