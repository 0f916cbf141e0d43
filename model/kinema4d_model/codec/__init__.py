"""Images and pointmaps to latents and back: Wan's autoencoder, a linear codec, CLIP tokens of the first image."""
