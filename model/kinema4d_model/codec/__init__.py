"""Pictures and pointmaps to latents and back: Wan's autoencoder, a linear one, and CLIP tokens of the first image."""
