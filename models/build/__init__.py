"""Builders: a checkpoint becomes ONNX graphs on the bench, never in the car."""
