"""Model families built from Hugging Face checkpoints (config.json, safetensors), or from config.json alone."""
