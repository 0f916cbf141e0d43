"""Weights from files: official checkpoints, our own folders, adapters, the hub; safetensors only, every key checked."""
