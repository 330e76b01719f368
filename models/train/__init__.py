"""What models are trained on, made on the bench: labelled sentences. Nothing here is used while the car drives."""
