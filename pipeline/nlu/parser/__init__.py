"""The semantic parser that is a model: text to features, the model's scores to a program, guards around it."""
